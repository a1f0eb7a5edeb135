"""The one Parquet schema: what experiments write and figures read. Tables joined by `point_id`.

points: what was run, one row per point. frames: what became of each frame. pool: the engine's state over time.
scores: what a model made of texts, where it is asked. decisions: what the gate did, where there is one, and its limit.
Times are nanoseconds since the point's start. Null is what did not happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 4

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()
# What may be null, per table.
_BOUND = {"window", "sinks", "positions", "max_model_len", "engine_dtype", "stream_fixes"}
_SERVED = {
    "sessions", "phases", "mean_lifetime_ns", "workload_seed", "period_ns", "deadline_ns", "duration_ns",
    "tokens_in", "tokens_out", "turns_vary", "repeat_idx", "warm_up_ns", "target_fraction", "policy", "control_ns",
    "offered", "n_star", "workload", "burst_frames", "silence_periods",
}  # fmt: skip
_FORECAST = {"tte_ns", "tte_low_ns", "tte_high_ns"}
_HAPPENED = {"sent_ns", "first_token_ns", "done_ns", "kv_tokens"}


def _schema(maybe: set[str], /, **columns: pa.DataType) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=name in maybe) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"metronome_schema": str(SCHEMA_VERSION)})


SCHEMAS: Mapping[str, pa.Schema] = {
    "points": _schema(
        _BOUND | _SERVED,
        run_id=_S, point_id=_S, experiment=_S, engine=_S, model=_S, weights=_S, engine_dtype=_S, stream_fixes=_B,
        hardware=_S, kv=_S, window=_I, sinks=_I, positions=_S, num_blocks=_I, block_size=_I, max_model_len=_I,
        workload=_S, sessions=_I, phases=_S, mean_lifetime_ns=_I, burst_frames=_I, silence_periods=_I,
        workload_seed=pa.list_(_I), turns_vary=_B, period_ns=_I, deadline_ns=_I, duration_ns=_I, tokens_in=_I,
        tokens_out=_I, repeat_idx=_I, warm_up_ns=_I, target_fraction=_F, policy=_S, control_ns=_I,
        offered=pa.list_(_F), n_star=_F,
    ),
    "frames": _schema(
        _HAPPENED,
        run_id=_S, point_id=_S, session_id=_I, frame_idx=_I, release_ns=_I, sent_ns=_I, first_token_ns=_I, done_ns=_I,
        deadline_ns=_I, tokens_in=_I, tokens_out=_I, kv_tokens=_I, status=_S,
    ),
    "pool": _schema(
        {"stats_age_ns"} | _FORECAST,
        run_id=_S, point_id=_S, t_ns=_I, blocks_used=_I, blocks_total=_I, running=_I, waiting=_I, deferred=_I,
        preemptions=_I, tokens_out=_I, stats_age_ns=_I, ttft_ms=pa.list_(_F), inter_token_ms=pa.list_(_F),
        tte_ns=_I, tte_low_ns=_I, tte_high_ns=_I, alarm=_B,
    ),
    "scores": _schema(
        set(),
        run_id=_S, point_id=_S, task=_S, text=_S, metric=_S, start=_I, num_tokens=_I, value=_F,
    ),
    "decisions": _schema(
        {"session_id", "retry_after_ns"},
        run_id=_S, point_id=_S, t_ns=_I, session_id=_I, action=_S, limit=_F, num_active=_I, retry_after_ns=_I,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFacts:
    """What a point was: everything a reader needs to interpret its frames, and no result."""

    point_id: str
    experiment: str
    engine: str
    model: str
    weights: str
    hardware: str
    kv: str
    window: int | None
    sinks: int | None
    positions: str | None
    num_blocks: int
    block_size: int
    max_model_len: int | None  # None: the engine has no border
    engine_dtype: str | None = None  # None: the engine computes nothing
    stream_fixes: bool | None = None  # None: the model hears no audio itself
    # None where no sessions are served
    workload: str | None = None  # its name
    sessions: int | None = None
    phases: str | None = None
    burst_frames: int | None = None  # None: a session is never silent
    silence_periods: int | None = None
    mean_lifetime_ns: int | None = None  # of a session; None: all last to the end
    workload_seed: tuple[int, ...] | None = None  # drew lifetimes, phases and arrivals
    turns_vary: bool | None = None  # the model ends turns before tokens_out
    period_ns: int | None = None
    deadline_ns: int | None = None
    duration_ns: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    repeat_idx: int | None = None
    warm_up_ns: int | None = None  # windows are not full before it
    target_fraction: float | None = None  # of the deadline, which p95 should keep
    policy: str | None = None  # who may come in
    control_ns: int | None = None  # one control window
    offered: tuple[float, ...] | None = None  # sessions, were all let in, in equal steps of the duration
    n_star: float | None = None  # as measured before: what a limit is held against


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number about one stretch of one text: `metric` over `num_tokens` tokens from position `start`."""

    task: str
    text: str
    metric: str
    start: int
    num_tokens: int
    value: float
