import pytest

from metronome.frames import NS_PER_MS, FrameStatus, SessionSpec, TurnOutput
from metronome.session import PeriodicSession
from metronome.window import Bound

P = 1000 * NS_PER_MS


@pytest.fixture
def session():
    spec = SessionSpec(session_id=3, start_ns=0, phase_ns=P // 2, period_ns=P, deadline_ns=P, num_frames=4)
    return PeriodicSession(spec, tokens_in=25)


def said(num_tokens=4, turn_done=True, **more):
    return TurnOutput(num_tokens=num_tokens, num_sampled=num_tokens, turn_done=turn_done, **more)


def answer(session, idx, sent_ns, done_ns, **more):
    session.sent(idx, sent_ns)
    session.heard(said(**more), done_ns)
    (record,) = session.take_finished()
    return record


def test_a_frame_is_ok_up_to_its_deadline_and_late_after_it(session):
    assert answer(session, 0, P // 2, P // 2 + P).status == FrameStatus.OK
    assert answer(session, 1, P // 2 + P, P // 2 + 2 * P + 1).status == FrameStatus.LATE


def test_times_are_kept_as_they_were(session):
    session.sent(0, P // 2 + 5)
    session.heard(said(1, turn_done=False), P // 2 + 50)
    session.heard(said(3), P // 2 + 90)
    (record,) = session.take_finished()
    assert (record.release_ns, record.sent_ns) == (P // 2, P // 2 + 5)
    assert (record.first_token_ns, record.done_ns) == (P // 2 + 50, P // 2 + 90)
    assert record.deadline_ns == P // 2 + P
    assert (record.tokens_in, record.tokens_out) == (25, 4)


def test_answers_belong_to_the_oldest_frame_in_flight(session):
    session.sent(0, P // 2)
    session.sent(1, P // 2 + P)
    session.heard(said(), 2 * P)
    session.heard(said(), 2 * P + 1)
    assert [r.frame_idx for r in session.take_finished()] == [0, 1]


def test_a_turn_without_a_token_is_empty_and_has_no_first_token(session):
    session.sent(0, P // 2)
    session.heard(TurnOutput(num_tokens=0, num_sampled=1, turn_done=True), P)
    (record,) = session.take_finished()
    assert record.status == FrameStatus.EMPTY
    assert record.first_token_ns is None and record.done_ns == P


def test_what_was_never_answered_is_lost_and_what_was_not_released_is_no_frame(session):
    session.sent(0, P // 2)
    session.heard(said(1, turn_done=False), P // 2 + 50)
    session.close(P // 2 + P)  # frame 1 is released at this very moment and was not sent
    first, second = session.take_finished()
    assert (first.status, first.sent_ns, first.first_token_ns) == (FrameStatus.LOST, P // 2, P // 2 + 50)
    assert (second.status, second.sent_ns) == (FrameStatus.LOST, None)
    assert first.done_ns is None and first.kv_tokens is None


def test_the_end_of_a_session_names_its_reason(session):
    session.sent(0, P // 2)
    session.ended = FrameStatus.ENGINE_DEAD
    session.close(2 * P)
    assert {r.status for r in session.take_finished()} == {FrameStatus.ENGINE_DEAD}


def test_a_session_that_met_max_model_len_says_so_in_that_frame_and_after(session):
    session.sent(0, P // 2)
    session.heard(said(2, hit_max_len=True), P)
    session.close(2 * P)
    assert [r.status for r in session.take_finished()] == [FrameStatus.MAX_LEN] * 2


def test_the_last_token_of_a_turn_is_not_in_the_cache(session):
    held = [answer(session, k, P // 2 + k * P, P // 2 + k * P + 1).kv_tokens for k in range(3)]
    assert held == [28, 56, 84]


def test_a_bounded_session_reports_what_its_bound_lets_it_keep():
    spec = SessionSpec(session_id=0, start_ns=0, phase_ns=0, period_ns=P, deadline_ns=P, num_frames=100)
    bound = Bound(window=64, sinks=4, block_size=32)
    session = PeriodicSession(spec, 25, bound.held_tokens)
    held = [answer(session, k, k * P, k * P + 1).kv_tokens for k in range(100)]
    assert held[0] == 28
    assert held[-1] == len(bound.kept_positions(100 * 28))
    assert max(held) <= 32 + 64 + 32


def test_frames_out_of_order_are_a_fault_of_the_caller(session):
    with pytest.raises(AssertionError, match="in order"):
        session.sent(1, P)


def test_the_engines_own_count_of_positions_takes_the_place_of_the_plan(session):
    first = answer(session, 0, P // 2, P, num_in=27)
    assert (first.tokens_in, first.kv_tokens) == (27, 27 + 3)
    second = answer(session, 1, P // 2 + P, 2 * P)
    assert (second.tokens_in, second.kv_tokens) == (25, 30 + 25 + 3)


def test_a_backend_that_bounds_its_sessions_says_what_they_keep(session):
    assert answer(session, 0, P // 2, P, num_in=285, num_kept=40).kv_tokens == 40
