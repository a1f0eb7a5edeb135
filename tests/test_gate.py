import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome.admission import AimdLimit, ControlWindow, FixedLimit, Unlimited
from metronome.frames import NS_PER_S, Action
from metronome.gate import Gate


def gate(limit=None, **options):
    return Gate(limit or FixedLimit(2), **({"window_ns": 5 * NS_PER_S} | options))


def window(t_s, num_active=2, pressure=()):
    return ControlWindow(t_ns=t_s * NS_PER_S, num_active=num_active, pressure=pressure)


def actions(decisions):
    """What was decided of sessions, less the notes that one left and that the limit was looked at."""
    return [(d.session_id, str(d.action)) for d in decisions if d.action not in (Action.LEAVE, Action.UPDATE)]


def test_who_does_not_fit_is_refused_at_once_with_a_hint():
    """vllm#18826: queues without end; users ask for a refusal that says when to come back."""
    one = gate()
    assert [one.arrive(i, 0).action for i in range(3)] == [Action.ADMIT, Action.ADMIT, Action.REFUSE]
    refused = one.arrive(3, NS_PER_S)
    assert refused.retry_after_ns == 5 * NS_PER_S and (refused.limit, refused.num_active) == (2, 2)


def test_the_hint_follows_how_fast_places_come_free():
    one = gate(FixedLimit(4))
    for i in range(4):
        one.arrive(i, 0)
    for i, t_s in enumerate((10, 30, 50)):
        one.leave(i, t_s * NS_PER_S)
        one.arrive(10 + i, t_s * NS_PER_S)
    assert one.arrive(99, 51 * NS_PER_S).retry_after_ns == 20 * NS_PER_S


def test_waiting_is_bounded_and_first_come_first_served():
    one = gate(max_wait_ns=10 * NS_PER_S)
    assert actions(one.arrive(i, i * NS_PER_S) for i in range(4)) == [
        (0, "admit"), (1, "admit"), (2, "wait"), (3, "wait"),
    ]  # fmt: skip
    assert actions(one.leave(0, 4 * NS_PER_S)) == [(2, "admit")]
    assert actions(one.close_window(window(13))) == []
    assert actions(one.close_window(window(14))) == [(3, "refuse")]


def test_nobody_overtakes_those_who_wait():
    limit = FixedLimit(1)
    one = gate(limit, max_wait_ns=60 * NS_PER_S)
    one.arrive(0, 0)
    one.arrive(1, 1)
    assert one.arrive(2, 2).action == Action.WAIT
    assert actions(one.leave(0, 3)) == [(1, "admit")]


def test_one_who_hangs_up_while_waiting_is_forgotten():
    one = gate(max_wait_ns=60 * NS_PER_S)
    for i in range(3):
        one.arrive(i, 0)
    assert actions(one.leave(2, 1)) == []
    assert actions(one.leave(0, 2)) == [] and one.num_active == 1


def test_shedding_ends_the_newest_and_never_the_last():
    policy = AimdLimit(start=10, decrease=0.5)
    one = gate(policy, shed=True)
    for i in range(10):
        one.arrive(i, i)
    shed = one.close_window(window(5, 10, [2.0] * 10))
    assert actions(shed) == [(i, "shed") for i in (9, 8, 7, 6, 5)]
    assert one.num_active == 5 and shed[-1].num_active == 5
    calm = gate(AimdLimit(start=10, decrease=0.5))
    for i in range(10):
        calm.arrive(i, i)
    assert actions(calm.close_window(window(5, 10, [2.0] * 10))) == [] and calm.num_active == 10


@given(st.lists(st.tuples(st.sampled_from(["arrive", "leave", "close"]), st.integers(0, 30)), max_size=80))
def test_no_more_are_in_than_the_limit_says_and_everybody_gets_one_answer(steps):
    one = gate(FixedLimit(3), max_wait_ns=4)
    seen, answers = set(), {}
    for t_ns, (step, session_id) in enumerate(steps):
        if step == "arrive" and session_id not in seen:
            seen.add(session_id)
            decisions = [one.arrive(session_id, t_ns)]
        elif step == "leave":
            decisions = one.leave(session_id, t_ns)
        else:
            decisions = one.close_window(ControlWindow(t_ns=t_ns, num_active=one.num_active, pressure=()))
        for decision in decisions:
            if decision.action in (Action.ADMIT, Action.REFUSE):
                assert decision.session_id not in answers
                answers[decision.session_id] = decision.action
        assert one.num_active <= 3


def test_the_trace_of_decisions_holds_who_left_and_every_look_at_the_limit():
    one = gate()
    one.arrive(0, 0)
    (left,) = one.leave(0, 7)
    assert (left.action, left.session_id, left.num_active) == (Action.LEAVE, 0, 0)
    (update,) = one.close_window(window(5, 0))
    assert (update.action, update.session_id, update.limit) == (Action.UPDATE, None, 2)


def test_impossible_gates_are_refused():
    with pytest.raises(ValueError, match="window_ns=0"):
        Gate(Unlimited(), window_ns=0)
