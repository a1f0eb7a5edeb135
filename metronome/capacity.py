"""How many sessions an engine serves in time: N*, the largest number whose latency still keeps its distance from the
deadline (claims C6, C7)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats

from metronome.facts import bound_of, tokens_of
from metronome.frames import FrameStatus
from metronome.saturation import idle_ceiling
from metronome.stats import engine_latency_ns, quantile
from metronome.trace import Trace

QUANTILE = 0.95  # of engine latency
MAX_LATE = 0.01  # share of frames that are late, empty or never come
_STEP = 0.02  # N* is sought to this share of itself, and to one session where that is more


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What N sessions saw once their windows were full.

    utilisation: mean service time / period, the share of a session's period in which its frame is being served; inf
    where a frame never came. By Little's law it is also the mean number of frames in service, per session.
    """

    sessions: int
    p50_ns: float
    p95_ns: float
    late_share: float
    utilisation: float

    def keeps(self, deadline_ns: int, target_fraction: float) -> bool:
        """Whether the engine serves this many: p95 below its share of the deadline, and hardly a frame late."""
        return self.p95_ns < target_fraction * deadline_ns and self.late_share <= MAX_LATE


def measure(point: pd.Series, frames: pd.DataFrame) -> Level:
    """The level of one point, from the frames released after its warm-up."""
    settled = frames[frames.release_ns >= point.warm_up_ns]
    latency = engine_latency_ns(settled)
    p50, p95 = quantile(latency, 0.5), quantile(latency, QUANTILE)
    assert p50 is not None and p95 is not None, f"{point.point_id}: no frame after its warm-up"
    return Level(
        sessions=int(point.sessions),
        p50_ns=p50,
        p95_ns=p95,
        late_share=float((settled.status != FrameStatus.OK).mean()),
        utilisation=float(latency.mean() / point.period_ns),
    )


def keeps(point: pd.Series, frames: pd.DataFrame) -> bool:
    """Whether the point's engine served its sessions in time."""
    return measure(point, frames).keeps(int(point.deadline_ns), float(point.target_fraction))


class Bracket:
    """Looks for the largest number of sessions that is served, by bisection between `low` and `high`.

    Both are only presumed: where the search ends at one of them, it is asked for too, and passed if it gives way. The
    answer is measured on both sides: `low` was served and `high`, next to it, was not.
    """

    def __init__(self, low: int, high: int) -> None:
        assert 0 <= low < high
        self._presumed_low, self._presumed_high, self._step = low, high, high - low
        self._served: set[int] = {0}
        self._failed: set[int] = set()

    def tell(self, sessions: int, served: bool) -> None:
        if (sessions >= self.high) if served else (sessions <= self.low):
            self._step *= 2  # an end gave way: what was presumed is further off than thought
        (self._served if served else self._failed).add(sessions)

    @property
    def low(self) -> int:
        """The largest number that was served below any that was not, or what is presumed of it."""
        served = self._known
        if self._presumed_low < self.high:
            return max(served, self._presumed_low)
        return max(served, self.high - self._step)

    @property
    def high(self) -> int:
        if self._failed:
            return min(self._failed)
        return self._presumed_high if self._known < self._presumed_high else self._known + self._step

    @property
    def _known(self) -> int:
        return max(n for n in self._served if not self._failed or n < min(self._failed))

    def next(self) -> int | None:
        """The next number to try; None when the answer is known."""
        low, high = self.low, self.high
        if high - low > max(1, round(_STEP * high)):
            # Past what was presumed, in strides until the truth lies between.
            if high > self._presumed_high and not self._failed:
                return high
            if low < self._presumed_low and low not in self._served:
                return low
            return (low + high) // 2
        if low not in self._served:
            return low
        return None if high in self._failed else high


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number measured more than once: its mean, with the interval of the mean; None where one run says nothing."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Student's interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None)
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(values) - 1) * scipy.stats.sem(values))
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def spearman(levels: Sequence[Level]) -> float:
    """Rank correlation of N and p95: 1 where latency rises with every session, so that it tells of the load."""
    return float(scipy.stats.spearmanr([x.sessions for x in levels], [x.p95_ns for x in levels]).statistic)


def find_n_star(trace: Trace) -> list[int]:
    """N* of each repeat, from the points that its search tried: the largest that was served below any that was not."""
    points = trace.points[trace.points.sessions.notna()]
    found = []
    for _, repeat in points.groupby("repeat_idx"):
        tried = [(int(p.sessions), keeps(p, trace.of(p.point_id).frames)) for _, p in repeat.iterrows()]
        failed = min((n for n, served in tried if not served), default=None)
        found.append(max((n for n, served in tried if served and (failed is None or n < failed)), default=0))
    return found


def ladder_levels(trace: Trace) -> list[Level]:
    """Levels of the first repeat, by N."""
    points = trace.points[(trace.points.repeat_idx == 0) & trace.points.sessions.notna()].sort_values("sessions")
    return [measure(p, trace.of(p.point_id).frames) for _, p in points.iterrows()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Idle sessions that the pool held, and how many it should by the block arithmetic."""

    measured: int
    predicted: int


def find_ceiling(trace: Trace) -> Ceiling:
    """Of a point that filled the pool: sessions that joined one by one, each with as many frames as the first."""
    point, frames = trace.points.iloc[0], trace.frames
    num_frames = int(frames[frames.session_id == 0].frame_idx.max()) + 1
    answered = frames[frames.done_ns.notna()].groupby("session_id").size()
    predicted = idle_ceiling(
        tokens_of(point), num_frames, int(point.num_blocks), int(point.block_size), bound_of(point)
    )
    return Ceiling(measured=int((answered == num_frames).sum()), predicted=predicted)
