"""The one Parquet schema: what experiments write and figures read. Tables joined by `point_id`.

points: what was run, one row per point. frames: what became of each frame. pool: the engine's state over time.
scores: what a model made of texts, where it is asked. decisions: what the gate did, where there is one, and its limit.
Times are nanoseconds since the point's start. Null is what did not happen.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from metronome.frames import Decision, FrameRecord, PoolSample

SCHEMA_VERSION = 3

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()
# What may be null, per table.
_BOUND = {"window", "sinks", "positions", "max_model_len", "engine_dtype"}
_SERVED = {
    "sessions", "phases", "mean_lifetime_ns", "workload_seed", "period_ns", "deadline_ns", "duration_ns",
    "tokens_in", "tokens_out", "turns_vary", "repeat_idx", "warm_up_ns", "target_fraction", "policy", "control_ns",
    "offered", "n_star",
}  # fmt: skip
_FORECAST = {"tte_ns", "tte_low_ns", "tte_high_ns"}
_HAPPENED = {"sent_ns", "first_token_ns", "done_ns", "kv_tokens"}


def _schema(maybe: set[str], /, **columns: pa.DataType) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=name in maybe) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"metronome_schema": str(SCHEMA_VERSION)})


SCHEMAS: Mapping[str, pa.Schema] = {
    "points": _schema(
        _BOUND | _SERVED,
        run_id=_S, point_id=_S, experiment=_S, engine=_S, model=_S, weights=_S, engine_dtype=_S,
        hardware=_S,
        kv=_S, window=_I, sinks=_I, positions=_S, num_blocks=_I, block_size=_I,
        max_model_len=_I, sessions=_I, phases=_S, mean_lifetime_ns=_I, workload_seed=pa.list_(_I), turns_vary=_B,
        period_ns=_I, deadline_ns=_I, duration_ns=_I, tokens_in=_I, tokens_out=_I, repeat_idx=_I, warm_up_ns=_I,
        target_fraction=_F, policy=_S, control_ns=_I, offered=pa.list_(_F),
        n_star=_F,
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
    # None where no sessions are served
    sessions: int | None = None
    phases: str | None = None
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


class TraceWriter:
    """Collects rows in memory and writes them from a thread of its own, in parts that are renamed into place.

    A kill loses at most the last `part_s` seconds. An error of the thread is raised at the next call.
    """

    def __init__(self, directory: Path, run_id: str, part_s: float = 2.0) -> None:
        self._directory = directory
        self._run_id = run_id
        self._part_s = part_s
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._num_parts = dict.fromkeys(SCHEMAS, 0)
        self._lock = threading.Lock()  # guards _rows: held for moments, also by the hot path
        self._writing = threading.Lock()  # guards the files
        self._closing = threading.Event()
        self._error: OSError | pa.ArrowException | None = None
        self._thread = threading.Thread(target=self._write_parts, name="trace-writer", daemon=True)

    def __enter__(self) -> "TraceWriter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._raise()

    def point(self, facts: PointFacts) -> "PointSink":
        """Record what the point is; the sink takes what happens in it."""
        sink = PointSink(self, self._run_id, facts)
        self._flush()  # now, not while frames are due: the first write of a process takes 20 ms
        return sink

    def add(self, table: str, row: dict[str, Any]) -> None:
        self._raise()
        with self._lock:
            self._rows[table].append(row)

    def _raise(self) -> None:
        if self._error:
            raise RuntimeError(f"the trace in {self._directory} cannot be written: {self._error}") from self._error

    def _write_parts(self) -> None:
        try:
            while not self._closing.wait(self._part_s):
                self._flush()
            self._flush()
        except (OSError, pa.ArrowException) as error:
            self._error = error

    def _flush(self) -> None:
        with self._writing:
            with self._lock:
                taken, self._rows = self._rows, {name: [] for name in SCHEMAS}
            for name, rows in taken.items():
                if rows:
                    part = self._directory / name / f"part-{self._num_parts[name]:05d}.parquet"
                    part.parent.mkdir(parents=True, exist_ok=True)
                    write_table(pa.Table.from_pylist(rows, schema=SCHEMAS[name]), part)
                    self._num_parts[name] += 1


class PointSink:
    """Takes the records of one point, for the writer and for a look at the point once it is over."""

    def __init__(self, writer: TraceWriter, run_id: str, facts: PointFacts) -> None:
        self._writer = writer
        self._ids = {"run_id": run_id, "point_id": facts.point_id}
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._add("points", asdict(facts))

    def frame(self, record: FrameRecord) -> None:
        self._add("frames", asdict(record))

    def pool(self, sample: PoolSample) -> None:
        self._add("pool", asdict(sample))

    def decision(self, decision: Decision) -> None:
        self._add("decisions", asdict(decision))

    def score(self, score: Score) -> None:
        self._add("scores", asdict(score))

    def _add(self, table: str, values: dict[str, Any]) -> None:
        row = self._ids | values
        self._rows[table].append(row)
        self._writer.add(table, row)

    def trace(self) -> "Trace":
        """The point so far, as `read` would give it."""
        tables = {name: pa.Table.from_pylist(rows, schema=SCHEMAS[name]) for name, rows in self._rows.items()}
        return _sorted_trace({name: _to_pandas(table) for name, table in tables.items()})


def write_table(table: pa.Table, path: Path) -> None:
    """Write under a temporary name, then rename: a reader never sees half a file."""
    part = path.with_suffix(".tmp")
    pq.write_table(table, part, compression="zstd")
    part.rename(path)


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as read back; each frame of data has the columns of its schema."""

    points: pd.DataFrame
    frames: pd.DataFrame
    pool: pd.DataFrame
    scores: pd.DataFrame
    decisions: pd.DataFrame

    def of(self, point_id: str) -> "Trace":
        """The rows of one point, frames by release and samples by time."""
        return Trace(
            *(
                table[table.point_id == point_id].reset_index(drop=True)
                for table in (self.points, self.frames, self.pool, self.scores, self.decisions)
            )
        )


def join(traces: Sequence[Trace]) -> Trace:
    """The points of all of them."""
    tables = {name: pd.concat([getattr(t, name) for t in traces], ignore_index=True) for name in SCHEMAS}
    return _sorted_trace(tables)


def read(data: Path, experiment: str) -> Trace:
    """A run directory, or a directory of golden files named `<experiment>.<table>.parquet`, `....0.parquet` in parts.

    Raises ValueError, with the command that makes the data, where it is missing or not of this schema and experiment.
    """
    tables = {name: _read_table(data, experiment, name) for name in SCHEMAS}
    others = set(tables["points"].experiment) - {experiment}
    if others:
        raise ValueError(f"{data} holds {', '.join(sorted(others))}, not {experiment}; {_how_to_make(experiment)}")
    return _sorted_trace(tables)


def find_experiments(data: Path) -> list[str]:
    """Names of the experiments in a run directory or a directory of golden files. Raises ValueError without any."""
    golden = sorted(path.name.split(".")[0] for path in data.glob("*.points.parquet"))
    parts = sorted((data / "points").glob("*.parquet"))
    names = golden or sorted({name for part in parts for name in pq.read_table(part)["experiment"].to_pylist()})
    if not names:
        raise ValueError(f"{data}: holds no traces; give a run directory, or data/golden")
    return names


def _sorted_trace(tables: Mapping[str, pd.DataFrame]) -> Trace:
    return Trace(
        points=tables["points"],
        frames=tables["frames"].sort_values(["release_ns", "session_id"], ignore_index=True),
        pool=tables["pool"].sort_values("t_ns", ignore_index=True, kind="stable"),
        scores=tables["scores"],
        decisions=tables["decisions"].sort_values("t_ns", ignore_index=True, kind="stable"),
    )


def _how_to_make(experiment: str) -> str:
    return f"make it with: python -m experiments.run +exp={experiment}"


def _read_table(data: Path, experiment: str, name: str) -> pd.DataFrame:
    golden = sorted([*data.glob(f"{experiment}.{name}.parquet"), *data.glob(f"{experiment}.{name}.[0-9].parquet")])
    parts = golden or sorted((data / name).glob("*.parquet"))
    if not parts and name == "points":
        raise ValueError(f"{data} has no {name} of {experiment}; {_how_to_make(experiment)}")
    for part in parts:
        schema = pq.read_schema(part)
        version = (schema.metadata or {}).get(b"metronome_schema")
        if version != str(SCHEMA_VERSION).encode() or not schema.equals(SCHEMAS[name]):
            raise ValueError(f"{part}: not a {name} table of schema {SCHEMA_VERSION}; {_how_to_make(experiment)}")
    return _to_pandas(pa.concat_tables([SCHEMAS[name].empty_table(), *(pq.read_table(part) for part in parts)]))


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper={_I: pd.Int64Dtype()}.get)
    return frame
