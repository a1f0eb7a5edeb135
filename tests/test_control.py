"""The control loop on sessions whose frames are known: what a window sees, and when it closes."""

from metronome.admission import AimdLimit, FixedLimit
from metronome.control import Controller
from metronome.frames import NS_PER_S, Action, FrameStatus, SessionSpec, TurnOutput
from metronome.gate import Gate
from metronome.session import PeriodicSession

WINDOW_NS = 4 * NS_PER_S
ANSWER = TurnOutput(num_tokens=4, num_sampled=4, turn_done=True)


class Recorder:
    """A policy that keeps what it is shown."""

    def __init__(self):
        self.windows = []

    def update(self, window):
        self.windows.append(window)

    def limit(self, t_ns, admitted_ns):
        return 3.0


def session(session_id=0, num_frames=10):
    spec = SessionSpec(
        session_id=session_id, start_ns=0, phase_ns=0, period_ns=NS_PER_S, deadline_ns=NS_PER_S, num_frames=num_frames
    )
    return PeriodicSession(spec, 25)


def controller(policy, **options):
    return Controller(Gate(policy, window_ns=WINDOW_NS, **options))


def test_a_window_holds_latencies_of_answered_frames_and_ages_of_waiting_ones():
    policy, one = Recorder(), session()
    control = controller(policy)
    control.arrive(0, 0)
    for idx, latency in enumerate((0.2, 0.3)):
        one.sent(idx, idx * NS_PER_S)
        one.heard(ANSWER, int((idx + latency) * NS_PER_S))
    one.sent(2, 2 * NS_PER_S)
    for record in one.take_finished():
        control.answered(record)
    assert control.tick(3 * NS_PER_S, [one]) == [] and not policy.windows
    control.tick(WINDOW_NS, [one])
    (window,) = policy.windows
    assert window.pressure == (0.2, 0.3) and window.waiting == (2.0,) and window.num_active == 1


def test_every_window_is_its_own_and_none_is_closed_twice():
    policy = Recorder()
    control = controller(policy)
    for tenth in range(0, 121):
        control.tick(tenth * NS_PER_S // 10, [])
    assert [w.t_ns for w in policy.windows] == [4 * NS_PER_S, 8 * NS_PER_S, 12 * NS_PER_S]
    assert all(w.pressure == () for w in policy.windows)


def test_frames_that_never_came_are_no_latency():
    policy, one = Recorder(), session()
    control = controller(policy)
    one.sent(0, 0)
    one.close(0, FrameStatus.LOST)
    for record in one.take_finished():
        control.answered(record)
    control.tick(WINDOW_NS, [one])
    assert policy.windows[0].pressure == ()


def test_a_stalled_engine_is_seen_from_ages_alone():
    """Nothing is answered any more; the limit falls all the same."""
    sessions = [session(i) for i in range(8)]
    control = controller(AimdLimit(start=8))
    for one in sessions:
        control.arrive(one.spec.session_id, 0)
        one.sent(0, 0)
    control.tick(WINDOW_NS, sessions)
    decisions = control.take_decisions()
    assert [d.action for d in decisions] == [Action.ADMIT] * 8 + [Action.UPDATE]
    assert decisions[-1].limit < 8


def test_who_waits_too_long_is_refused_between_windows_too():
    control = controller(FixedLimit(1), max_wait_ns=NS_PER_S)
    control.arrive(0, 0)
    assert control.arrive(1, 0).action is Action.WAIT
    assert control.tick(NS_PER_S, []) == []
    (refused,) = control.tick(NS_PER_S + 1, [])
    assert (refused.action, refused.session_id) == (Action.REFUSE, 1)
    assert [d.action for d in control.take_decisions()] == [Action.ADMIT, Action.WAIT, Action.REFUSE]
    assert control.take_decisions() == []
