"""Early warning: how long until the block pool is full, from samples of it alone, while it fills.

The forecast answers "if nobody leaves": a session that ends only buys time. It takes the pool's level once per step,
puts a robust line through the last of them with the falls of leaving sessions taken out, and extends it to the wall.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metronome.saturation import fit_line

_MIN_STEPS = 8  # fewer levels make no line
_CALM = 1.5  # an alarm ends when the horizon is exceeded by this factor
_OUTLIER = 3 * 1.4826  # median absolute deviations that make a fall more than noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Time to exhaustion with its 95 % interval, counted from the sample; None: no end in sight."""

    tte_ns: int | None = None
    tte_low_ns: int | None = None
    tte_high_ns: int | None = None
    alarm: bool = False


class Forecaster:
    """Updated with every sample of the pool; times are nanoseconds of one clock.

    step_ns: spacing of the levels a line is put through, `num_steps` of them; a frame period suits. horizon_ns: the
    alarm is raised when the interval's lower end falls under it. session_blocks: the most blocks one session can hold
    where its KV cache is bounded; as long as all sessions fit with that, there is nothing to warn of.
    """

    def __init__(
        self, *, step_ns: int, horizon_ns: int, num_steps: int = 20, session_blocks: int | None = None
    ) -> None:
        if step_ns < 1 or horizon_ns < 1:
            raise ValueError(f"forecast: step_ns={step_ns}, horizon_ns={horizon_ns}: both must be 1 or more")
        if num_steps < _MIN_STEPS:
            raise ValueError(f"forecast: num_steps={num_steps}: a line takes {_MIN_STEPS} levels or more")
        self._step_ns = step_ns
        self._horizon_ns = horizon_ns
        self._session_blocks = session_blocks
        self._levels: deque[tuple[int, int]] = deque(maxlen=num_steps + 1)  # (t_ns, blocks used), one per step
        self._alarm = False

    def update(self, t_ns: int, blocks_used: int, blocks_total: int, num_sessions: int) -> Forecast:
        """num_sessions: all that the engine knows of, running or waiting."""
        if self._levels and t_ns // self._step_ns == self._levels[-1][0] // self._step_ns:
            self._levels.pop()  # the newest level of a step stands for it
        self._levels.append((t_ns, blocks_used))
        bounded = self._session_blocks is not None and num_sessions * self._session_blocks <= blocks_total
        low, middle, high = (None, None, None) if bounded else self._extend(blocks_total - blocks_used)
        self._ring(low)
        return Forecast(tte_ns=middle, tte_low_ns=low, tte_high_ns=high, alarm=self._alarm)

    def _extend(self, free: int) -> tuple[int | None, int | None, int | None]:
        if free <= 0:
            return 0, 0, 0
        if len(self._levels) <= _MIN_STEPS:
            return None, None, None
        levels = np.array(self._levels, dtype=float)
        y = without_falls(levels[:, 1])
        line = fit_line(levels[:, 0], y)
        noise = float(np.abs(y - line.at(levels[:, 0])).max())
        until = [(max(free - noise, 0.0), line.high), (float(free), line.slope), (free + noise, line.low)]
        low, middle, high = (int(blocks / rate) if rate > 0 else None for blocks, rate in until)
        return low, middle, high

    def _ring(self, low_ns: int | None) -> None:
        limit_ns = self._horizon_ns * (_CALM if self._alarm else 1)
        self._alarm = low_ns is not None and low_ns < limit_ns


def without_falls(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The levels as if no session had left: falls out of all proportion are replaced by the usual step.

    The last level stays; earlier ones move. What a sliding window gives back, a block at a time, is no such fall.
    """
    steps = np.diff(levels)
    usual = np.median(steps)
    spread = np.median(np.abs(steps - usual))
    clean = np.where(steps < usual - _OUTLIER * spread - 2, usual, steps)
    later = np.concatenate([np.cumsum(clean[::-1])[::-1], [0.0]])
    return np.asarray(levels[-1] - later, dtype=float)
