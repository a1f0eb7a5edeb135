"""Who may come in: policies that say how many, apart from the gate (gate.py) that enforces one. Time is an argument.

A session lives for minutes and grows, so a limit is not like that of requests: lowering it sends nobody away, it only
lets nobody in until enough have left. (After Netflix's concurrency-limits, which keeps Limit and Limiter apart.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from metronome.stats import quantile

UNLIMITED = float("inf")
# Shares of the target. Sessions that are in stay in, so a step too far is not taken back at once.
_NEAR = 0.75  # where slow start ends
_HOLD = 0.9  # where the limit stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWindow:
    """What a control window saw.

    pressure: for every frame answered in it, engine latency / deadline. waiting: for every frame still open at its end,
    age / deadline. num_active: sessions that are in.
    """

    t_ns: int
    num_active: int
    pressure: Sequence[float]
    waiting: Sequence[float] = ()

    def quantile(self, q: float, target: float) -> float | None:
        """Of pressure. A frame that still waits counts with its age once that is above the target: it is known to be
        bad before it is done. Below, its latency is not known yet, and counting it would hide the others'.
        """
        overdue = [age for age in self.waiting if age > target]
        return quantile(np.asarray([*self.pressure, *overdue], dtype=float), q)


class Limit(Protocol):
    """How many sessions may be in. A policy is its own state and one window at a time."""

    def update(self, window: ControlWindow) -> None:
        """A control window is over."""

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        """Sessions that may be in at t, the newcomer counted; `admitted_ns`: those that are, by time of admission."""


@dataclass(frozen=True, slots=True)
class Unlimited:
    """Everybody comes in."""

    def update(self, window: ControlWindow) -> None:
        """Nothing is learnt."""

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        return UNLIMITED


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """A number that somebody measured."""

    sessions: int

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise ValueError(f"admission.sessions={self.sessions}: must be 1 or more")

    def update(self, window: ControlWindow) -> None:
        """Nothing is learnt."""

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        return float(self.sessions)


class AimdLimit:
    """Additive increase, multiplicative decrease, on a quantile of engine latency / deadline (claims C8, C9).

    Held as a float: truncated, a small limit would jump or stick. It grows only in a window that was good and in which
    it was really used: doubling at first (slow start), by `increase` once latency has come near its target. Near it,
    the limit holds. A bad window cuts it once; then it waits for a whole window to see the cut's effect, and as long as
    more sessions are in than the limit allows, since only their leaving can help. It never dips to probe.
    """

    def __init__(
        self,
        *,
        start: float = 4.0,
        floor: float = 1.0,
        ceiling: float = 1000.0,
        target: float = 0.8,
        target_quantile: float = 0.95,
        increase: float = 1.0,
        decrease: float = 0.9,
        in_use: float = 0.9,
    ) -> None:
        if not 1 <= floor <= start <= ceiling:
            raise ValueError(
                f"admission.floor={floor}, start={start}, ceiling={ceiling}: must be 1 <= floor <= start <= ceiling"
            )
        for name, value in (("target_quantile", target_quantile), ("decrease", decrease), ("in_use", in_use)):
            if not 0 < value < 1:
                raise ValueError(f"admission.{name}={value}: must lie between 0 and 1")
        for name, value in (("target", target), ("increase", increase)):
            if value <= 0:
                raise ValueError(f"admission.{name}={value}: must be above 0")
        self._limit = float(start)
        self._floor, self._ceiling = float(floor), float(ceiling)
        self._target, self._quantile = target, target_quantile
        self._increase, self._decrease, self._in_use = increase, decrease, in_use
        self._slow_start = True
        self._cooling = False

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        return self._limit

    def update(self, window: ControlWindow) -> None:
        seen = window.quantile(self._quantile, self._target)
        if self._cooling or seen is None:
            self._cooling = False
        elif seen > self._target:
            self._back_off(window.num_active)
        elif self._slow_start and seen > _NEAR * self._target:
            # A limit that was doubled past those who are in would let in all who are on their way.
            self._slow_start = False
            self._limit = max(self._floor, min(self._limit, window.num_active))
        elif seen < _HOLD * self._target and window.num_active >= self._in_use * self._limit:
            grown = 2 * self._limit if self._slow_start else self._limit + self._increase
            self._limit = min(grown, self._ceiling)

    def _back_off(self, num_active: int) -> None:
        if num_active > self._limit + 1:
            return  # cut already; those above it have yet to leave
        self._slow_start = False
        self._cooling = True
        self._limit = max(self._floor, self._decrease * min(self._limit, num_active))


class GrowthAwareLimit:
    """As many sessions as the pool will hold at their expected peak, so that even an unbounded engine seldom fills it.

    A session that is a periods old will be a + h periods old in h periods, if it still lives, which it does with
    probability exp(-h / L). Blocks in use at h have a mean and a variance from that; a newcomer is admitted while mean
    plus `margin` deviations stay below the pool at every h. Lifetimes are chance, so an unbounded pool can still fill;
    with a bound (`session_blocks`) every session has a most that it holds.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        growth: float,
        period_ns: int,
        lifetime_ns: float,
        session_blocks: int | None = None,
        margin: float = 4.0,
    ) -> None:
        for name, value in (("growth", growth), ("lifetime_ns", lifetime_ns), ("period_ns", period_ns)):
            if value <= 0:
                raise ValueError(f"admission.{name}={value}: must be above 0")
        self._num_blocks, self._block_size, self._session_blocks = num_blocks, block_size, session_blocks
        self._growth, self._period_ns, self._margin = growth, period_ns, margin
        self._ahead = np.linspace(0, 4 * lifetime_ns, 81)  # beyond four lifetimes hardly anyone is left
        self._alive = np.exp(-self._ahead / lifetime_ns)

    def update(self, window: ControlWindow) -> None:
        """Nothing is learnt: the law is known."""

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        """One more than are in while a newcomer fits, else as many as are in."""
        ages = np.array([t_ns - since for since in admitted_ns.values()] + [0], dtype=float)
        return len(ages) if self.peak_blocks(ages) <= self._num_blocks else len(ages) - 1

    def peak_blocks(self, ages_ns: np.ndarray) -> float:
        """The most blocks that sessions of these ages will use, `margin` deviations above the mean."""
        frames = (ages_ns[:, None] + self._ahead[None, :]) / self._period_ns + 1
        blocks = self._growth * frames / self._block_size + 1  # the last block counts whole
        if self._session_blocks is not None:
            blocks = np.minimum(blocks, self._session_blocks)
        mean = (blocks * self._alive).sum(axis=0)
        variance = (blocks**2 * self._alive * (1 - self._alive)).sum(axis=0)
        return float((mean + self._margin * np.sqrt(variance)).max())


@dataclass(frozen=True, slots=True)
class MinLimit:
    """Two policies, of which the stricter one decides."""

    first: Limit
    second: Limit

    def update(self, window: ControlWindow) -> None:
        self.first.update(window)
        self.second.update(window)

    def limit(self, t_ns: int, admitted_ns: Mapping[int, int]) -> float:
        return min(self.first.limit(t_ns, admitted_ns), self.second.limit(t_ns, admitted_ns))
