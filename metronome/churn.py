"""The race between fill and session length: how likely sessions that join and leave meet the wall.

rho(t) is a random walk with drift: it climbs by N r, and falls by a whole session whenever one leaves. Its mean has a
closed form; whether it meets the wall is counted in draws of a block-exact model of the engine.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metronome.facts import seed_of, workload_of
from metronome.frames import NS_PER_MS, SessionSpec
from metronome.stats import COLLAPSE_PERIODS, num_sampled
from metronome.window import blocks_for
from metronome.workload import HANG_UP_PERIODS, Workload


def expected_blocks(
    t_ns: NDArray[np.float64], num_sessions: int, growth: float, period_ns: int, lifetime_ns: float, block_size: int
) -> NDArray[np.float64]:
    """Mean blocks in use at t: N sessions with exponential lifetimes, replaced as they leave, started together at 0.

    A session's age at t is exponential too, cut at t, so its mean is L (1 - exp(-t / L)). Each session's last block is
    half full in the mean.
    """
    age_ns = lifetime_ns * -np.expm1(-np.asarray(t_ns, dtype=float) / lifetime_ns)
    return num_sessions * (growth * age_ns / period_ns / block_size + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What unbounded sessions share. tokens_in: input tokens of a frame."""

    num_blocks: int
    block_size: int
    tokens_in: int


@dataclass(slots=True, eq=False)
class ModelSession:
    """One session as the model of the engine follows it."""

    spec: SessionSpec
    sampled: Iterator[int]  # tokens that each of its turns samples
    num_pending: int = 0  # frames released and not yet answered
    num_answered: int = 0
    cached: int = 0
    held: int = 0
    to_resume: int = 0  # tokens still to sample of a turn that a preemption cut short
    gone: bool = False


class EngineModel:
    """vLLM's scheduler at the level of blocks, infinitely fast: what cannot run now waits for blocks, not for time.

    Sessions that hold blocks come first, in the order in which they were last answered; then new and preempted ones.
    The first that does not fit stops all behind it. A session that runs out of blocks while it samples is preempted:
    it loses its blocks and goes to the head of those that hold none (vllm/v1/core/sched/scheduler.py).
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.num_free = pool.num_blocks
        self._holding: list[ModelSession] = []
        self._empty: deque[ModelSession] = deque()

    def release(self, session: ModelSession) -> None:
        """Its next frame is due."""
        session.num_pending += 1
        if session.num_pending == 1 and session.num_answered == 0:
            self._empty.append(session)

    def leave(self, session: ModelSession) -> None:
        session.gone = True
        self.num_free += session.held
        session.held = 0
        for queue in (self._holding, self._empty):
            if session in queue:
                queue.remove(session)

    def run(self) -> bool:
        """Answer whatever can be answered; whether anything was."""
        spoke = False
        while (session := self._first()) is not None and self._fits(session):
            spoke = True
            (self._holding if session in self._holding else self._empty).remove(session)
            if not self._answer(session):
                self._empty.appendleft(session)
            elif session.num_answered < session.spec.num_frames:
                self._holding.append(session)
            else:
                self.leave(session)
        return spoke

    def _first(self) -> ModelSession | None:
        return next((s for s in self._holding if s.num_pending), self._empty[0] if self._empty else None)

    def _fits(self, session: ModelSession) -> bool:
        new = 0 if session.to_resume else self._pool.tokens_in
        return blocks_for(session.cached + new, self._pool.block_size) - session.held <= self.num_free

    def _answer(self, session: ModelSession) -> bool:
        """One turn to its end; False when it was preempted on the way."""
        to_sample = session.to_resume
        if not to_sample:
            session.cached += self._pool.tokens_in
            to_sample = next(session.sampled)
        self._take(session)
        # The prefill samples the first token; each later one puts its predecessor into the cache.
        for sampled in range(1, to_sample):
            session.cached += 1
            if not self._take(session):
                self.num_free += session.held
                session.held, session.to_resume = 0, to_sample - sampled
                return False
        session.to_resume = 0
        session.num_pending -= 1
        session.num_answered += 1
        return True

    def _take(self, session: ModelSession) -> bool:
        need = blocks_for(session.cached, self._pool.block_size) - session.held
        if need > self.num_free:
            return False
        self.num_free -= need
        session.held += need
        return True


def first_collapse_ns(
    specs: Sequence[SessionSpec], pool: Pool, turns: Sequence[Iterator[int]], hang_up_ns: int
) -> int | None:
    """When the engine falls silent for COLLAPSE_PERIODS periods while callers speak on; None where it never does.

    turns[i]: how many tokens each turn of session i samples. A caller hangs up once the last frame is answered, or
    `hang_up_ns` after its deadline.
    """
    engine = EngineModel(pool)
    sessions = {spec.session_id: ModelSession(spec, lengths) for spec, lengths in zip(specs, turns, strict=True)}
    releases = [(s.release_ns(k), False, s.session_id) for s in specs for k in range(s.num_frames)]
    hang_ups = [(s.end_ns + hang_up_ns, True, s.session_id) for s in specs]
    silence_ns = COLLAPSE_PERIODS * specs[0].period_ns
    last_release_ns, spoke_ns = max(releases)[0], 0
    for t_ns, hangs_up, session_id in sorted(releases + hang_ups):
        if t_ns - spoke_ns > silence_ns and last_release_ns >= spoke_ns + silence_ns:
            return spoke_ns
        session = sessions[session_id]
        if hangs_up and not session.gone:
            engine.leave(session)
        elif not hangs_up:
            engine.release(session)
        if engine.run():
            spoke_ns = t_ns
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseOdds:
    """probability: of a collapse within the run; std_error: of counting it in a finite number of draws."""

    probability: float
    std_error: float
    t_collapse_ns: NDArray[np.float64]  # of each draw, inf where it survived


def predict_collapse(
    workload: Workload,
    num_sessions: int,
    pool: Pool,
    sampled: NDArray[np.int64],
    *,
    draws: int = 2000,
    seed: int = 0,
    lifetime_seed: tuple[int, ...] | None = None,
) -> CollapseOdds:
    """Draw runs of the workload and count those that collapse (claim C3).

    sampled: turn lengths as observed, [n]; each turn draws one of them. lifetime_seed: how long sessions last is known,
    drawn by this seed, and only the lengths of turns are left to chance.
    """
    rng = np.random.default_rng(seed)

    def turns() -> Iterator[int]:
        while True:
            yield from rng.choice(sampled, size=4096).tolist()

    lengths, found = turns(), []
    hang_up_ns = HANG_UP_PERIODS * workload.period_ms * NS_PER_MS
    for draw in range(draws):
        specs = workload.make_sessions(num_sessions, lifetime_seed or (seed, draw))
        t_ns = first_collapse_ns(specs, pool, [lengths] * len(specs), hang_up_ns)
        found.append(np.inf if t_ns is None else t_ns)
    share = float(np.isfinite(found).mean())
    return CollapseOdds(
        probability=share, std_error=float(np.sqrt(share * (1 - share) / draws)), t_collapse_ns=np.array(found)
    )


def predict_point(
    point: Any, bounded: pd.DataFrame, draws: int = 2000, *, given_lifetimes: bool = False
) -> CollapseOdds:
    """The odds of an unbounded point of a trace.

    bounded: frames of the same load on the bounded engine, which cuts no turn short, for the lengths of turns.
    given_lifetimes: of this very run, whose sessions lasted as long as they did.
    """
    pool = Pool(num_blocks=int(point.num_blocks), block_size=int(point.block_size), tokens_in=int(point.tokens_in))
    sampled = num_sampled(bounded, int(point.tokens_out), bool(point.turns_vary))
    known = seed_of(point) if given_lifetimes else None
    return predict_collapse(workload_of(point), int(point.sessions), pool, sampled, draws=draws, lifetime_seed=known)
