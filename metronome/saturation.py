"""When the block pool fills: rho(t) = rho0 + N r t, and the exact block arithmetic behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from metronome.frames import SessionSpec
from metronome.window import Bound, blocks_for

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTokens:
    """What one frame does to the cache: `num_in` tokens at once, then `num_out` sampled one by one.

    The last sampled token is discarded by the engine, so a frame leaves num_in + num_out - 1 tokens behind.
    """

    num_in: int
    num_out: int

    @property
    def growth(self) -> int:
        return self.num_in + self.num_out - 1


def peak_blocks(frame_idx: int, tokens: FrameTokens, block_size: int, bound: Bound | None = None) -> int:
    """The most blocks a session holds while its frame `frame_idx` (from 0) is processed."""
    start = frame_idx * tokens.growth
    end = start + tokens.growth
    if bound is None:
        return blocks_for(end, block_size)
    prefilled = start + tokens.num_in
    steps = [(start, prefilled), *((n, n + 1) for n in range(prefilled, end))]
    return max(bound.num_blocks(computed, total) for computed, total in steps)


def predict_t_sat_ns(
    sessions: Sequence[SessionSpec], tokens: FrameTokens, num_blocks: int, block_size: int, bound: Bound | None = None
) -> int | None:
    """Release time of the first frame that does not fit the pool of `num_blocks`; None when all frames fit.

    Exact while the engine keeps up, so that frames claim their blocks in the order of their release and a session is
    gone once its last frame is answered. From the frame that does not fit on the scheduler can start nothing: sessions
    resume in order of arrival, and the one in front never fits.
    """
    held = dict.fromkeys((s.session_id for s in sessions), 0)
    releases = sorted((s.release_ns(k), s.session_id, k, s) for s in sessions for k in range(s.num_frames))
    for release_ns, session_id, frame_idx, spec in releases:
        held[session_id] = peak_blocks(frame_idx, tokens, block_size, bound)
        if sum(held.values()) > num_blocks:
            return release_ns
        if frame_idx == spec.num_frames - 1:
            held[session_id] = 0
    return None


def memory_ceiling(tokens: FrameTokens, num_frames: int, num_blocks: int, block_size: int, bound: Bound | None) -> int:
    """Sessions of `num_frames` frames that the pool holds at once: what memory allows, whatever the deadline says."""
    frames = range(num_frames if bound is None else min(num_frames, _frames_to_plateau(tokens, bound)))
    return num_blocks // max(peak_blocks(k, tokens, block_size, bound) for k in frames)


def idle_ceiling(tokens: FrameTokens, num_frames: int, num_blocks: int, block_size: int, bound: Bound | None) -> int:
    """Sessions that the pool holds when they join one by one, speak `num_frames` frames each and then fall silent.

    The last to join needs its peak, all others only what their last turn left them.
    """
    peak = max(peak_blocks(k, tokens, block_size, bound) for k in range(num_frames))
    idle = idle_blocks(num_frames, tokens, block_size, bound)
    return 0 if peak > num_blocks else (num_blocks - peak) // idle + 1


def idle_blocks(num_frames: int, tokens: FrameTokens, block_size: int, bound: Bound | None) -> int:
    """Blocks that a session keeps after `num_frames` frames: what lies behind its window goes with its next step."""
    cached = num_frames * tokens.growth
    return blocks_for(cached, block_size) if bound is None else bound.num_blocks(cached - 1, cached)


def _frames_to_plateau(tokens: FrameTokens, bound: Bound) -> int:
    """Frames after which a bounded session repeats itself: the window is full, and every offset in a block was met."""
    return blocks_for(bound.window, tokens.growth) + bound.num_sink_blocks * bound.block_size + bound.block_size + 1


def first_order_t_sat_ns(
    num_sessions: int, tokens: FrameTokens, period_ns: int, num_blocks: int, block_size: int, rho0: float = 0.0
) -> float:
    """The paper's line: (1 - rho0) / (N r), where r is one session's share of the pool per nanosecond (claim C5)."""
    rate = tokens.growth / (num_blocks * block_size * period_ns)
    return (1 - rho0) / (num_sessions * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A robust line with the interval of its slope; the lines of the interval turn about (x_mid, at(x_mid))."""

    slope: float
    low: float
    high: float
    intercept: float
    x_mid: float

    def at(self, x: Floats | float) -> Floats | float:
        return self.intercept + self.slope * x


def fit_line(x: Floats, y: Floats, level: float = 0.95) -> Line:
    """Theil and Sen: the median of all pairwise slopes, with Sen's interval from the ranks of Kendall's statistic.

    In numpy alone, for what is loaded beside an engine; equal to `scipy.stats.theilslopes` where no y are tied.
    """
    assert len(x) == len(y) >= 2
    i, j = np.triu_indices(len(x), 1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    slope = float(np.median(slopes))
    n = len(x)
    reach = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(round((len(slopes) - reach) / 2) - 1, 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    return Line(
        slope=slope,
        low=float(slopes[low]),
        high=float(slopes[high]),
        intercept=float(np.median(y - slope * x)),
        x_mid=float(np.median(x)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RhoFit:
    """rho(t) = rho0 + rate t as fitted, and when it reaches 1; times in ns, None where the line never does."""

    rho0: float
    rate_per_ns: float  # N r
    rate_low: float
    rate_high: float
    t_sat_ns: float | None
    t_sat_low_ns: float | None
    t_sat_high_ns: float | None


def fit_rho(t_ns: Floats, rho: Floats, level: float = 0.95) -> RhoFit:
    """Fit the paper's line to samples of the pool; give one sample per frame period, or the interval is too narrow.

    The interval of t_sat holds the slope's own and how far samples lie off the line.
    """
    line = fit_line(t_ns, rho, level)
    middle = float(line.at(line.x_mid))
    off = rho - line.at(t_ns)
    below, above = np.quantile(off, [(1 - level) / 2, (1 + level) / 2])

    def reach(rate: float, shift: float) -> float | None:
        return line.x_mid + (1 - middle - shift) / rate if rate > 0 else None

    return RhoFit(
        rho0=line.intercept,
        rate_per_ns=line.slope,
        rate_low=line.low,
        rate_high=line.high,
        t_sat_ns=reach(line.slope, 0.0),
        t_sat_low_ns=reach(line.high, float(above)),
        t_sat_high_ns=reach(line.low, float(below)),
    )
