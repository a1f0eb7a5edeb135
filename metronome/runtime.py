"""The asyncio shell: real clock, real backend. Open loop: frames leave on an absolute schedule, come what may."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Protocol

from metronome.backends.base import Backend, EngineDied, Turn
from metronome.control import Controller
from metronome.door import Door
from metronome.forecast import Forecaster
from metronome.frames import NS_PER_S, Decision, FrameRecord, FrameStatus, PoolSample
from metronome.session import PeriodicSession

_LEAD_NS = NS_PER_S // 2  # time to create all session tasks, and to fall quiet, before the first release

Observer = Callable[[Sequence[PeriodicSession], PoolSample], None]


class Sink(Protocol):
    """Where records go, e.g. a trace writer."""

    def frame(self, record: FrameRecord) -> None: ...

    def pool(self, sample: PoolSample) -> None: ...

    def decision(self, decision: Decision) -> None: ...


class PointRun:
    """Drives the sessions of one point to their end.

    turns[i][k] holds frame k of session i. A caller hangs up once the last frame is answered, or
    `drain_ns` after its deadline; what is unanswered then is lost. forecaster: sees every sample of the pool.
    controller: decides who may come in; without one, all may.
    """

    def __init__(
        self,
        sessions: Sequence[PeriodicSession],
        turns: Sequence[Sequence[Turn]],
        backend: Backend,
        sink: Sink,
        *,
        sample_ns: int,
        drain_ns: int,
        forecaster: Forecaster | None = None,
        controller: Controller | None = None,
        observer: Observer | None = None,
        name: str = "point",
    ) -> None:
        assert len(sessions) == len(turns)
        self._sessions = sessions
        self._turns = turns
        self._backend = backend
        self._sink = sink
        self._sample_ns = sample_ns
        self._drain_ns = drain_ns
        self._forecaster = forecaster
        self._door = Door(controller, self.now_ns) if controller else None
        self._observer = observer
        self._name = name
        self._origin_ns = 0
        self._live: dict[int, PeriodicSession] = {}  # have begun, and have records to give

    def now_ns(self) -> int:
        """Nanoseconds since the point's start."""
        return time.monotonic_ns() - self._origin_ns

    async def run(self) -> None:
        """Returns when every session is over. On cancellation the frames so far are written before it propagates."""
        self._origin_ns = time.monotonic_ns() + _LEAD_NS
        tasks = [
            asyncio.create_task(self._drive(session, turns))
            for session, turns in zip(self._sessions, self._turns, strict=True)
        ]
        sampler = asyncio.create_task(self._sample())
        try:
            await self._until_done(tasks, sampler)
        finally:
            await _cancel([*tasks, sampler])
            t_ns = self.now_ns()
            for session in self._sessions:
                session.close(t_ns)
            self._live = {session.spec.session_id: session for session in self._sessions}
            self._tick(t_ns)

    async def _until_done(self, tasks: Sequence["asyncio.Task[None]"], sampler: "asyncio.Task[None]") -> None:
        pending = set(tasks)
        while pending:
            done, _ = await asyncio.wait(pending | {sampler}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a fault of the harness must not pass for a silent session
            pending -= done

    async def _drive(self, session: PeriodicSession, turns: Sequence[Turn]) -> None:
        await self._sleep_until(session.spec.release_ns(0))
        self._live[session.spec.session_id] = session
        if self._door and not await self._door.enter(session):
            return
        left_ns = session.spec.end_ns + self._drain_ns - self.now_ns()
        try:
            async with asyncio.timeout(left_ns / NS_PER_S) as patience:
                if self._door:
                    self._door.inside(session, patience)
                await self._converse(session, turns)
        except TimeoutError:
            if not patience.expired():
                raise
        session.close(self.now_ns())
        if self._door:
            self._door.leave(session)

    async def _converse(self, session: PeriodicSession, turns: Sequence[Turn]) -> None:
        session_id = f"{self._name}-{session.spec.session_id}"
        try:
            async with aclosing(self._backend.converse(session_id, self._speak(session, turns))) as outputs:
                async for output in outputs:
                    session.heard(output, self.now_ns())
                    if session.ended:
                        break
        except EngineDied:
            session.ended = FrameStatus.ENGINE_DEAD
        if session.ended:
            await self._sleep_until(session.spec.release_ns(session.spec.num_frames - 1))

    async def _speak(self, session: PeriodicSession, turns: Sequence[Turn]) -> AsyncIterator[Turn]:
        for idx in range(session.spec.num_frames):
            await self._sleep_until(session.spec.release_ns(idx))
            session.sent(idx, self.now_ns())
            yield turns[idx]

    async def _sample(self) -> None:
        tick = 0
        while True:
            await self._sleep_until(tick * self._sample_ns)
            self._tick(self.now_ns())
            tick += 1

    def _tick(self, t_ns: int) -> None:
        sample = self._backend.sample(t_ns)
        if self._forecaster:
            num_sessions = sample.running + sample.waiting
            seen = self._forecaster.update(t_ns, sample.blocks_used, sample.blocks_total, num_sessions)
            sample = replace(sample, **asdict(seen))
        self._sink.pool(sample)
        for session in list(self._live.values()):
            for record in session.take_finished():
                self._sink.frame(record)
                if self._door:
                    self._door.answered(record)
            if session.closed:
                del self._live[session.spec.session_id]
        if self._door:
            for decision in self._door.tick(t_ns, list(self._live.values())):
                self._sink.decision(decision)
        if self._observer:
            self._observer(self._sessions, sample)

    async def _sleep_until(self, t_ns: int) -> None:
        await asyncio.sleep(max(0, t_ns - self.now_ns()) / NS_PER_S)


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
