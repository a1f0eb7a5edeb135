"""The gate's arm in the asyncio shell: callers wait at it, come in, leave, or are shown out."""

import asyncio
from collections.abc import Callable, Sequence

from metronome.control import Controller
from metronome.frames import Action, Decision, FrameRecord, FrameStatus
from metronome.session import PeriodicSession


class Door:
    """Carries out what a controller decides. now_ns: nanoseconds since the point's start."""

    def __init__(self, controller: Controller, now_ns: Callable[[], int]) -> None:
        self._controller = controller
        self._now_ns = now_ns
        self._waiting: dict[int, asyncio.Future[Action]] = {}
        self._inside: dict[int, tuple[PeriodicSession, asyncio.Timeout]] = {}

    async def enter(self, session: PeriodicSession) -> bool:
        """Whether the session may speak; one that had to wait begins when it is let in. If not, it is over."""
        session_id = session.spec.session_id
        action = self._controller.arrive(session_id, self._now_ns()).action
        if action is Action.WAIT:
            self._waiting[session_id] = asyncio.get_running_loop().create_future()
            action = await self._waiting[session_id]
            if action is Action.ADMIT:
                session.start_at(self._now_ns())
        if action is Action.REFUSE:  # the caller hangs up: one frame was released, the others never will be
            session.close(session.spec.release_ns(0), FrameStatus.REFUSED)
        return action is Action.ADMIT

    def inside(self, session: PeriodicSession, patience: asyncio.Timeout) -> None:
        """It is in; `patience` ends it where it is shed."""
        self._inside[session.spec.session_id] = session, patience

    def leave(self, session: PeriodicSession) -> None:
        self._inside.pop(session.spec.session_id, None)
        self._carry_out(self._controller.leave(session.spec.session_id, self._now_ns()))

    def answered(self, record: FrameRecord) -> None:
        self._controller.answered(record)

    def tick(self, t_ns: int, sessions: Sequence[PeriodicSession]) -> list[Decision]:
        """Decisions since the last tick, all carried out."""
        self._carry_out(self._controller.tick(t_ns, sessions))
        return self._controller.take_decisions()

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if decision.session_id is None:
                continue
            if decision.action is Action.SHED and decision.session_id in self._inside:
                session, patience = self._inside[decision.session_id]
                session.ended = FrameStatus.DROPPED
                patience.reschedule(asyncio.get_running_loop().time())
            elif decision.session_id in self._waiting:
                self._waiting.pop(decision.session_id).set_result(decision.action)
