"""The control loop of a point: feeds the gate with what sessions see, window by window. No clock, no I/O."""

from collections.abc import Sequence

from metronome.admission import ControlWindow
from metronome.frames import Decision, FrameRecord
from metronome.gate import Gate
from metronome.session import PeriodicSession


class Controller:
    """Closes the gate's control windows and keeps every decision until it is taken."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._closes_ns = gate.window_ns
        self._pressure: list[float] = []
        self._decisions: list[Decision] = []

    def arrive(self, session_id: int, t_ns: int) -> Decision:
        """Somebody asks to come in: admitted, told to wait, or refused."""
        decision = self._gate.arrive(session_id, t_ns)
        self._decisions.append(decision)
        return decision

    def leave(self, session_id: int, t_ns: int) -> list[Decision]:
        """A session is over; what that means for those who wait."""
        return self._keep(self._gate.leave(session_id, t_ns))

    def answered(self, record: FrameRecord) -> None:
        """A frame is over; it counts if it was answered."""
        if record.done_ns is not None:
            budget_ns = record.deadline_ns - record.release_ns
            self._pressure.append((record.done_ns - record.release_ns) / budget_ns)

    def tick(self, t_ns: int, sessions: Sequence[PeriodicSession]) -> list[Decision]:
        """Close the window that has ended by now, and let go those who have waited too long."""
        if t_ns < self._closes_ns:
            return self._keep(self._gate.let_in(t_ns))
        waiting = [age / s.spec.deadline_ns for s in sessions for age in s.open_ages_ns(t_ns)]
        window = ControlWindow(
            t_ns=t_ns, num_active=self._gate.num_active, pressure=tuple(self._pressure), waiting=tuple(waiting)
        )
        self._pressure.clear()
        self._closes_ns = (t_ns // self._gate.window_ns + 1) * self._gate.window_ns
        return self._keep(self._gate.close_window(window))

    def take_decisions(self) -> list[Decision]:
        """Decisions since the last call."""
        taken, self._decisions = self._decisions, []
        return taken

    def _keep(self, decisions: list[Decision]) -> list[Decision]:
        self._decisions += decisions
        return decisions
