"""The gate at the edge: lets sessions in, makes them wait, refuses or sheds them, by a Limit. No clock, no I/O."""

from collections import deque

from metronome.admission import ControlWindow, Limit
from metronome.frames import Action, Decision


class Gate:
    """Enforces a limit: who asks is let in, told to wait for at most `max_wait_ns`, or refused at once.

    shed: sessions above the limit are ended at the close of a control window, the newest first.
    """

    def __init__(self, limit: Limit, *, window_ns: int, max_wait_ns: int = 0, shed: bool = False) -> None:
        if window_ns < 1 or max_wait_ns < 0:
            raise ValueError(
                f"admission.window_ns={window_ns}, max_wait_ns={max_wait_ns}: must be 1 or more, 0 or more"
            )
        self._policy = limit
        self._window_ns, self._max_wait_ns, self._shed = window_ns, max_wait_ns, shed
        self._admitted_ns: dict[int, int] = {}  # in order of admission
        self._waiting: deque[tuple[int, int]] = deque()  # (session, since)
        self._left_ns: deque[int] = deque(maxlen=8)

    @property
    def window_ns(self) -> int:
        return self._window_ns

    @property
    def num_active(self) -> int:
        return len(self._admitted_ns)

    def limit(self, t_ns: int) -> float:
        """What is enforced now: the one source for traces and displays."""
        return self._policy.limit(t_ns, self._admitted_ns)

    def arrive(self, session_id: int, t_ns: int) -> Decision:
        assert session_id not in self._admitted_ns
        if not self._waiting and self._has_room(t_ns):
            return self._admit(session_id, t_ns)
        if self._max_wait_ns:
            self._waiting.append((session_id, t_ns))
            return self._decide(session_id, t_ns, Action.WAIT)
        return self._refuse(session_id, t_ns)

    def leave(self, session_id: int, t_ns: int) -> list[Decision]:
        """A session is over; those who wait may take its place."""
        self._waiting = deque(one for one in self._waiting if one[0] != session_id)
        if self._admitted_ns.pop(session_id, None) is None:  # shed before, or never in
            return self.let_in(t_ns)
        self._left_ns.append(t_ns)
        return [self._decide(session_id, t_ns, Action.LEAVE), *self.let_in(t_ns)]

    def close_window(self, window: ControlWindow) -> list[Decision]:
        """The policy learns from the window; its consequences, in order."""
        self._policy.update(window)
        decisions = [self._decide(None, window.t_ns, Action.UPDATE), *self.let_in(window.t_ns)]
        while self._shed and self.num_active > max(self.limit(window.t_ns), 1):
            newest = next(reversed(self._admitted_ns))
            del self._admitted_ns[newest]
            decisions.append(self._decide(newest, window.t_ns, Action.SHED))
        return decisions

    def let_in(self, t_ns: int) -> list[Decision]:
        """Those who wait, as far as there is room; who has waited too long is refused."""
        decisions = []
        while self._waiting:
            session_id, since_ns = self._waiting[0]
            if t_ns - since_ns > self._max_wait_ns:
                self._waiting.popleft()
                decisions.append(self._refuse(session_id, t_ns))
            elif self._has_room(t_ns):
                self._waiting.popleft()
                decisions.append(self._admit(session_id, t_ns))
            else:
                break
        return decisions

    def _has_room(self, t_ns: int) -> bool:
        return self.num_active + 1 <= self.limit(t_ns)

    def _admit(self, session_id: int, t_ns: int) -> Decision:
        self._admitted_ns[session_id] = t_ns
        return self._decide(session_id, t_ns, Action.ADMIT)

    def _refuse(self, session_id: int, t_ns: int) -> Decision:
        return self._decide(session_id, t_ns, Action.REFUSE, self._retry_after_ns(t_ns))

    def _retry_after_ns(self, t_ns: int) -> int:
        """The time between the last departures, and no less than the window in which the limit can change."""
        if len(self._left_ns) < 2:
            return self._window_ns
        gap_ns = (self._left_ns[-1] - self._left_ns[0]) // (len(self._left_ns) - 1)
        return max(self._window_ns, gap_ns)

    def _decide(self, session_id: int | None, t_ns: int, action: Action, retry_after_ns: int | None = None) -> Decision:
        return Decision(
            t_ns=t_ns,
            session_id=session_id,
            action=action,
            limit=self.limit(t_ns),
            num_active=self.num_active,
            retry_after_ns=retry_after_ns,
        )
