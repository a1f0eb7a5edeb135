"""From a trace to results: quantiles that keep frames which never finished, and the collapse and its cause."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from metronome.frames import NS_PER_MS, NS_PER_S, FrameStatus, harness_late_ns
from metronome.saturation import RhoFit, fit_rho
from metronome.trace import Trace
from metronome.window import blocks_for

COLLAPSE_PERIODS = 3  # silence of all sessions for this long, while input goes on, is a collapse
MIN_LEVELS = 5  # fewer make no line
_KEEPS_UP = 0.9  # of the frames that arrive: an engine that answers fewer falls behind for good
MAX_HARNESS_LATE = 0.001  # above this share of frames sent late, a run says nothing about the engine

Nanoseconds = NDArray[np.float64]  # inf: never


def quantile(values: Nanoseconds, q: float) -> float | None:
    """The smallest value that a share q of all values does not exceed; None without values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else None


def bootstrap_interval(values: NDArray[np.float64], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Interval of the mean by resampling `values`, 10,000 times; of one value it is that value."""
    draws = np.random.default_rng(seed).choice(values, size=(10_000, len(values)))
    low, high = np.quantile(draws.mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def slope_interval(x: NDArray[np.float64], y: NDArray[np.float64], level: float = 0.95) -> tuple[float, float, float]:
    """Least-squares slope of y over x, with its interval: (slope, low, high)."""
    fit = scipy.stats.linregress(x, y)
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(x) - 2) * fit.stderr)
    return float(fit.slope), float(fit.slope) - half, float(fit.slope) + half


def wilson_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share of which `count` in `total` were seen."""
    found = scipy.stats.binomtest(count, total).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def done_ns(frames: pd.DataFrame) -> Nanoseconds:
    """When each frame was done; inf for a frame that never was."""
    done: Nanoseconds = frames.done_ns.to_numpy(dtype=float, na_value=np.inf)
    return done


def engine_latency_ns(frames: pd.DataFrame) -> Nanoseconds:
    """done - release, from the planned release: a late send is part of the latency, not an excuse for it."""
    latency: Nanoseconds = done_ns(frames) - frames.release_ns.to_numpy(dtype=float)
    return latency


def frontend_latency_ns(frames: pd.DataFrame) -> Nanoseconds:
    """min(done, deadline) - release: at the deadline a full-duplex front end plays what it has, silence included."""
    deadline = frames.deadline_ns.to_numpy(dtype=float)
    latency: Nanoseconds = np.minimum(done_ns(frames), deadline) - frames.release_ns.to_numpy(dtype=float)
    return latency


def token_times_ns(frames: pd.DataFrame) -> Nanoseconds:
    """Sorted times at which some session is known to have produced tokens: first tokens and ends of turns."""
    spoken = frames[frames.tokens_out > 0]
    return np.sort(pd.concat([spoken.first_token_ns, spoken.done_ns]).dropna().to_numpy(dtype=float))


def find_collapse_ns(frames: pd.DataFrame, period_ns: int) -> float | None:
    """Time of the last token before the first silence of COLLAPSE_PERIODS periods that input did not share, or None."""
    frames = _admitted(frames)
    if not len(frames):
        return None
    release = np.sort(frames.release_ns.to_numpy(dtype=float))
    times = np.concatenate([[release[0]], token_times_ns(frames), [np.inf]])
    for before, after in zip(times[:-1], times[1:], strict=True):
        if after - before <= COLLAPSE_PERIODS * period_ns:
            continue
        # Where nobody waits for an answer the engine is silent by right: what counts begins with the next frame.
        waits = ((frames.release_ns <= before) & (done_ns(frames) > before)).any()
        later = release[release > before]
        begin = before if waits or not len(later) else later[0]
        # The silence must end in input, or the sessions had simply nothing left to say.
        if after - begin > COLLAPSE_PERIODS * period_ns and release[-1] >= begin + COLLAPSE_PERIODS * period_ns:
            return float(before)
    return None


def find_overload_ns(frames: pd.DataFrame, period_ns: int) -> float | None:
    """Release of the last frame that was on time, where from then on the engine answers fewer frames than arrive.

    Tokens still come, later and later: the service time is above the period. None where the engine keeps up, or was
    behind for less than COLLAPSE_PERIODS periods at the end.
    """
    frames = _admitted(frames)
    if not len(frames):
        return None
    done, release = done_ns(frames), frames.release_ns.to_numpy(dtype=float)
    on_time = release[done <= frames.deadline_ns.to_numpy(dtype=float)]
    start, end = float(on_time.max()) if len(on_time) else float(release.min()), float(release.max())
    if end - start <= COLLAPSE_PERIODS * period_ns:
        return None
    arrived, answered = (release > start).sum(), ((done > start) & (done <= end)).sum()
    return start if answered < _KEEPS_UP * arrived else None


def recycled_frames(point: pd.Series, frames: pd.DataFrame) -> NDArray[np.bool_]:
    """Frames whose input held tokens that the session had sent or said before (claim C12)."""
    found: NDArray[np.bool_] = (frames.tokens_in > point.tokens_in).to_numpy(dtype=bool)
    return found


def _admitted(frames: pd.DataFrame) -> pd.DataFrame:
    """Of sessions that were let in: only they are input."""
    return frames[frames.status != FrameStatus.REFUSED]


def num_sampled(frames: pd.DataFrame, tokens_out: int, turns_vary: bool) -> NDArray[np.int64]:
    """Tokens that each answered frame's turn sampled: the one that ended it early counts, though it is not spoken."""
    spoken: NDArray[np.int64] = frames[frames.done_ns.notna()].tokens_out.to_numpy(dtype=np.int64)
    return np.minimum(spoken + 1, tokens_out) if turns_vary else spoken


def find_death(point: pd.Series, frames: pd.DataFrame, pool: pd.DataFrame) -> tuple[float, str] | None:
    """When and why the point's engine stopped serving; None where it serves on."""
    if (silent_ns := find_collapse_ns(frames, point.period_ns)) is not None:
        return silent_ns, find_cause(point, frames, pool, silent_ns)
    behind_ns = find_overload_ns(frames, point.period_ns)
    if behind_ns is None:
        return None
    behind = pool[pool.t_ns.between(behind_ns + point.period_ns, frames.release_ns.max())]
    return behind_ns, "kv_full" if _free(behind) < _per_frame(point) + 1 else "compute"


def _free(pool: pd.DataFrame) -> float:
    """Blocks, as a rule."""
    return float((pool.blocks_total - pool.blocks_used).median())


def _per_frame(point: pd.Series) -> int:
    """Blocks that a frame may take."""
    return blocks_for(point.tokens_in + point.tokens_out, point.block_size)


def find_cause(point: pd.Series, frames: pd.DataFrame, pool: pd.DataFrame, collapse_ns: float) -> str:
    """Why the sessions fell silent at `collapse_ns`: engine_dead, max_len, kv_full or compute.

    A session that meets max_model_len between two turns takes vLLM 0.32's engine with it: that is max_len too. A pool
    need not be full to be kv_full: a preempted session that no longer fits keeps its place at the head of the queue,
    and new sessions wait behind it however many blocks are free.
    """
    lost = frames[frames.release_ns > collapse_ns].status
    at_border = _at_border(point, frames[frames.done_ns.notna()])
    if (lost == FrameStatus.MAX_LEN).any():
        return "max_len"
    if (lost == FrameStatus.ENGINE_DEAD).any():
        return "max_len" if at_border else "engine_dead"
    silent = pool[pool.t_ns.between(collapse_ns + point.period_ns, collapse_ns + COLLAPSE_PERIODS * point.period_ns)]
    if not len(silent):  # frames come faster than samples
        silent = pool[pool.t_ns > collapse_ns].head(1)
    idle = bool(len(silent)) and silent.running.median() == 0
    blocked = _free(silent) < _per_frame(point) + 1 or silent.preemptions.max() > 0
    if idle and blocked and silent.waiting.median() > 0:
        return "kv_full"
    return "max_len" if idle and at_border else "compute"


def _at_border(point: pd.Series, answered: pd.DataFrame) -> bool:
    """Whether some session has no room for another frame below max_model_len."""
    growth = point.tokens_in + num_sampled(answered, point.tokens_out, bool(point.turns_vary)) - 1
    length = pd.Series(growth).groupby(answered.session_id.to_numpy()).sum()
    border = np.inf if pd.isna(point.max_model_len) else point.max_model_len
    return bool((length + point.tokens_in + point.tokens_out > border).any())


def fit_fill(point: pd.Series, pool: pd.DataFrame, until: float) -> RhoFit:
    """The paper's line through a point's pool until it is `until` full, one sample per period (claim C5).

    Raises ValueError where the pool fills so fast that no line can be seen.
    """
    rho = pool.blocks_used / pool.blocks_total
    filling = pool[(pool.t_ns >= 0) & ((rho < until).cummin())]
    levels = filling.groupby(filling.t_ns // point.period_ns).tail(1)
    if len(levels) < MIN_LEVELS:
        raise ValueError(
            f"{point.point_id}: the pool is {until:.0%} full after {len(levels)} periods, a line takes {MIN_LEVELS}; "
            "lower workload.sessions or raise engine.num_blocks"
        )
    used = (levels.blocks_used / levels.blocks_total).to_numpy(dtype=float)
    return fit_rho(levels.t_ns.to_numpy(dtype=float), used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of one point. Latencies in ms; inf where the quantile falls on a frame that never came."""

    outcome: str  # survived, collapsed or invalid
    cause: str | None
    t_collapse_s: float | None
    frames: dict[str, int]  # count per status, zeros included
    engine_latency_ms: dict[str, float | None]
    frontend_latency_ms: dict[str, float | None]
    rho_max: float
    preemptions: int
    harness_late: int


def summarise(trace: Trace) -> Summary:
    """Results of a trace that holds exactly one point."""
    assert len(trace.points) == 1, "summarise one point at a time: trace.of(point_id)"
    point, frames, pool = trace.points.iloc[0], trace.frames, trace.pool
    collapse_ns, cause = find_death(point, frames, pool) or (None, None)
    late = count_harness_late(frames, int(point.period_ns))
    outcome = "survived" if collapse_ns is None else "collapsed"
    own = _admitted(frames)
    return Summary(
        outcome="invalid" if late > MAX_HARNESS_LATE * len(own) else outcome,
        cause=cause,
        t_collapse_s=None if collapse_ns is None else collapse_ns / NS_PER_S,
        frames={str(status): int((frames.status == status).sum()) for status in FrameStatus},
        engine_latency_ms=_quantiles_ms(engine_latency_ns(own)),
        frontend_latency_ms=_quantiles_ms(frontend_latency_ns(own)),
        rho_max=float((pool.blocks_used / pool.blocks_total).max()),
        preemptions=int(pool.preemptions.max()),
        harness_late=late,
    )


def count_harness_late(frames: pd.DataFrame, period_ns: int) -> int:
    """Frames sent too long after their release, or never although their session lived."""
    late = frames.sent_ns - frames.release_ns > harness_late_ns(period_ns)
    unsent = frames.sent_ns.isna() & (frames.status == FrameStatus.LOST)
    return int((late.fillna(False) | unsent).sum())


def _quantiles_ms(latency_ns: Nanoseconds) -> dict[str, Any]:
    found = {f"p{q}": quantile(latency_ns, q / 100) for q in (50, 95, 99)}
    return {name: None if value is None else value / NS_PER_MS for name, value in found.items()}
