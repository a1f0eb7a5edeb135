"""What callers got, control window by control window: limit, sessions in, latency, goodput (claims C8, C9)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metronome.capacity import MAX_LATE, QUANTILE
from metronome.frames import NS_PER_S, Action, FrameStatus
from metronome.stats import engine_latency_ns, quantile
from metronome.trace import Trace

WITHIN = 0.1  # of N*: as close as that is found
_SETTLED_WINDOWS = 3  # one alone may be chance


def windows(trace: Trace) -> pd.DataFrame:
    """One row per control window of a point, indexed from 0; without the last period, when callers hang up.

    t_ns: its end. limit: enforced after it. active: mean sessions in, over its time. p95_ns, late_share: of frames
    released in it, NaN without any; inf where they never came. goodput: frames per second that were released in it and
    answered in time. refused: callers turned away. rho: most of the pool in use.
    """
    point = trace.points.iloc[0]
    width = int(point.control_ns)
    num = int((point.duration_ns - point.period_ns) // width)
    own = trace.frames[trace.frames.status != FrameStatus.REFUSED]
    rows = []
    for i in range(num):
        start, end = i * width, (i + 1) * width
        frames = own[(own.release_ns >= start) & (own.release_ns < end)]
        ok = frames.status == FrameStatus.OK
        pool = trace.pool[(trace.pool.t_ns >= start) & (trace.pool.t_ns < end)]
        p95 = quantile(engine_latency_ns(frames), QUANTILE)
        rows.append(
            {
                "t_ns": end,
                "p95_ns": np.nan if p95 is None else p95,
                "late_share": float((~ok).mean()) if len(frames) else np.nan,
                "goodput": float(ok.sum()) / (width / NS_PER_S),
                "rho": float((pool.blocks_used / pool.blocks_total).max()) if len(pool) else np.nan,
            }
        )
    table = pd.DataFrame(rows)
    ends = table.t_ns.to_numpy(dtype=float)
    table["active"] = mean_active(trace.decisions, ends - width, ends)
    table["limit"] = _limits(trace.decisions, ends)
    refusals = trace.decisions[trace.decisions.action == Action.REFUSE].t_ns.to_numpy(dtype=float)
    table["refused"] = np.histogram(refusals, [0, *ends])[0]
    return table


def mean_active(decisions: pd.DataFrame, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean number of sessions in, from each start to its end (ns)."""
    changes = decisions[decisions.action.isin([Action.ADMIT, Action.LEAVE, Action.SHED])]
    times = np.concatenate([[-np.inf], changes.t_ns.to_numpy(dtype=float)])
    levels = np.concatenate([[0.0], changes.num_active.to_numpy(dtype=float)])
    found = []
    for start, end in zip(starts, ends, strict=True):
        inside = (times > start) & (times < end)
        edges = np.concatenate([[start], times[inside], [end]])
        level = np.concatenate([[levels[times <= start][-1]], levels[inside]])
        found.append(float((np.diff(edges) * level).sum() / (end - start)))
    return np.array(found)


def _limits(decisions: pd.DataFrame, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """The limit as it was last looked at by the end of each window, and a little after: windows close at a sample."""
    updates = decisions[decisions.action == Action.UPDATE]
    times, limits = updates.t_ns.to_numpy(dtype=float), updates.limit.to_numpy(dtype=float)
    limits = np.concatenate([[np.nan], limits])
    found: NDArray[np.float64] = limits[np.searchsorted(times, ends + ends[0] / 2, side="right")]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How a policy did against N*. Means over the last third of the run; None where nothing can be said."""

    limit: float
    active: float
    late_share: float  # of frames after it converged, or in the last third where it did not
    converged_windows: int | None  # until the sessions in stay within a tenth of N*, as a moving mean


def judge(trace: Trace, n_star: float) -> Control:
    """Of a point with a gate."""
    table = windows(trace)
    last = table[len(table) - len(table) // 3 :]
    converged = converged_after(table, n_star)
    point = trace.points.iloc[0]
    since_ns = last.t_ns.iloc[0] - point.control_ns if converged is None else converged * point.control_ns
    own = trace.frames[(trace.frames.status != FrameStatus.REFUSED) & (trace.frames.release_ns >= since_ns)]
    return Control(
        limit=float(last.limit.mean()),
        active=float(last.active.mean()),
        late_share=float((own.status != FrameStatus.OK).mean()),
        converged_windows=converged,
    )


def converged_after(table: pd.DataFrame, n_star: float) -> int | None:
    """Windows until the mean of `active` over the last three first lies within a tenth of N*."""
    smooth = table.active.rolling(_SETTLED_WINDOWS, min_periods=1).mean()
    near = np.flatnonzero(np.abs(smooth / n_star - 1) <= WITHIN)
    return int(near[0]) + 1 if len(near) else None


def recovered_after(table: pd.DataFrame, since_ns: float, deadline_ns: float, target_fraction: float) -> int | None:
    """Windows after `since_ns` until frames are on time again, p95 below its target, and stay so for three windows."""
    after = table[table.t_ns > since_ns]
    good = ((after.p95_ns < target_fraction * deadline_ns) & (after.late_share <= MAX_LATE)).to_numpy()
    for i in range(len(good)):
        if good[i : i + _SETTLED_WINDOWS].all() and len(good[i : i + _SETTLED_WINDOWS]) == _SETTLED_WINDOWS:
            return i
    return None


def steps(point: pd.Series, table: pd.DataFrame) -> pd.DataFrame:
    """One row per step of the offered load, from a point's windows: goodput in frames/s once settled, and refusals.

    The first half of a step is left out of goodput: sessions of the step before are still in.
    """
    width_ns = point.duration_ns / len(point.offered)
    rows = []
    for i, offered in enumerate(point.offered):
        start, end = i * width_ns, (i + 1) * width_ns
        whole = table[(table.t_ns > start) & (table.t_ns <= end)]
        settled = whole[whole.t_ns - point.control_ns >= (start + end) / 2 - 1]
        mean = settled[["goodput", "active", "late_share"]].mean()
        rows.append(
            {
                "offered": offered,
                "start_ns": start,
                "end_ns": end,
                **mean.to_dict(),
                "refused": int(whole.refused.sum()),
            }
        )
    return pd.DataFrame(rows)
