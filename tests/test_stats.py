import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import PERIOD_NS, facts, fill, frame, sample

from metronome import stats, trace
from metronome.frames import NS_PER_MS, NS_PER_S, FrameStatus


def sink_of(tmp_path, **changes):
    return trace.TraceWriter(tmp_path, "run").point(facts(**changes))


@given(st.lists(st.floats(0, 1e12) | st.just(math.inf), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_is_a_value_that_was_measured_and_covers_its_share(values, q):
    found = stats.quantile(np.array(values), q)
    assert found in values
    assert sum(v <= found for v in values) / len(values) >= q - 1e-9
    assert sum(v < found for v in values) / len(values) <= q + 1e-9


def test_a_quantile_of_nothing_is_nothing():
    assert stats.quantile(np.array([]), 0.5) is None


def test_a_lost_frame_is_infinitely_late_for_the_engine_and_on_time_for_the_front_end(tmp_path):
    sink = sink_of(tmp_path)
    sink.frame(frame(0, 0, 200.0))
    sink.frame(frame(0, 1, 1500.0))
    sink.frame(frame(0, 2, None))
    frames = sink.trace().frames
    assert (stats.engine_latency_ns(frames) / NS_PER_MS).tolist() == [200.0, 1500.0, math.inf]
    assert (stats.frontend_latency_ns(frames) / NS_PER_MS).tolist() == [200.0, 1000.0, 1000.0]


def test_latency_counts_from_the_release_not_from_the_send(tmp_path):
    sink = sink_of(tmp_path)
    sink.frame(frame(0, 0, 200.0, sent_ns=150 * NS_PER_MS))
    assert stats.engine_latency_ns(sink.trace().frames) == [200.0 * NS_PER_MS]


def summary(tmp_path, point=None, **how):
    sink = sink_of(tmp_path, **(point or {}))
    fill(sink, **how)
    return stats.summarise(sink.trace())


def test_a_run_that_goes_on_survives(tmp_path):
    result = summary(tmp_path)
    assert (result.outcome, result.cause, result.t_collapse_s) == ("survived", None, None)
    assert result.frames["ok"] == 40 and sum(result.frames.values()) == 40
    assert result.engine_latency_ms == {"p50": 200.0, "p95": 200.0, "p99": 200.0}
    assert result.rho_max == 38 / 40


def test_silence_in_a_full_pool_is_kv_full_dated_by_its_last_token(tmp_path):
    result = summary(tmp_path, stall_at=12)
    assert (result.outcome, result.cause) == ("collapsed", "kv_full")
    assert result.t_collapse_s == pytest.approx(11.5 + 0.2)
    assert result.frames["lost"] == 16
    assert result.engine_latency_ms["p95"] == math.inf
    assert result.frontend_latency_ms["p99"] == 1000.0  # what makes the cliff silent


def test_silence_in_a_pool_with_room_is_not_kv_full(tmp_path):
    assert summary(tmp_path, stall_at=12, used_when_stalled=20).cause == "compute"
    assert summary(tmp_path, stall_at=12, running_when_stalled=2).cause == "compute"


def test_three_periods_make_a_collapse_and_less_does_not(tmp_path):
    assert summary(tmp_path, stall_at=17).outcome == "survived"
    assert summary(tmp_path, stall_at=15).outcome == "collapsed"


def test_a_run_that_never_said_anything_collapsed_at_its_first_release(tmp_path):
    result = summary(tmp_path, stall_at=0)
    assert (result.outcome, result.t_collapse_s) == ("collapsed", 0.0)


def test_a_stall_that_passes_is_still_a_collapse(tmp_path):
    sink = sink_of(tmp_path)
    for idx in range(20):
        sink.frame(frame(0, idx, None if 5 <= idx < 10 else 200.0))
    assert stats.find_collapse_ns(sink.trace().frames, PERIOD_NS) == 4.2 * NS_PER_S


@pytest.mark.parametrize("status", [FrameStatus.ENGINE_DEAD, FrameStatus.MAX_LEN])
def test_frames_that_name_a_cause_decide_it(tmp_path, status):
    sink = sink_of(tmp_path)
    for idx in range(20):
        dead = idx >= 10
        sink.frame(frame(0, idx, None if dead else 200.0, status if dead else None))
        sink.pool(sample(idx, 40, 0, 2))
    assert stats.summarise(sink.trace()).cause == str(status)


def test_too_many_late_sends_make_a_run_invalid(tmp_path):
    sink = sink_of(tmp_path)
    fill(sink, num_frames=400)
    sink.frame(frame(0, 400, 200.0, sent_ns=400 * PERIOD_NS + 11 * NS_PER_MS))
    result = stats.summarise(sink.trace())
    assert (result.harness_late, result.outcome) == (1, "invalid")


@pytest.mark.parametrize(("period_ms", "lag_ms", "late"), [(80, 11, 1), (80, 9, 0), (2000, 11, 0), (2000, 21, 1)])
def test_how_late_a_send_may_be_is_ten_milliseconds_or_a_hundredth_of_the_period(tmp_path, period_ms, lag_ms, late):
    sink = sink_of(tmp_path)
    sink.frame(frame(0, 0, 200.0, sent_ns=lag_ms * NS_PER_MS))
    assert stats.count_harness_late(sink.trace().frames, period_ms * NS_PER_MS) == late


def test_frames_of_a_dead_engine_are_not_the_harness_late(tmp_path):
    sink = sink_of(tmp_path)
    fill(sink)
    sink.frame(frame(0, 20, None, FrameStatus.ENGINE_DEAD, sent_ns=None))
    assert stats.count_harness_late(sink.trace().frames, PERIOD_NS) == 0
    sink.frame(frame(0, 21, None, sent_ns=None))
    assert stats.count_harness_late(sink.trace().frames, PERIOD_NS) == 1


@pytest.mark.parametrize(("blocks_used", "cause"), [(20, "compute"), (39, "kv_full")])
def test_tokens_that_come_ever_later_are_dated_by_the_last_frame_on_time(tmp_path, blocks_used, cause):
    """With a full pool sessions wait for blocks that others free as they leave: the cores are not what lacks."""
    sink = sink_of(tmp_path)
    for idx in range(20):
        late_ms = 200.0 if idx < 8 else 200.0 + 1500 * (idx - 7)  # each frame takes 2.5 periods
        for session_id in range(2):
            sink.frame(frame(session_id, idx, late_ms))
            sink.pool(sample(idx, blocks_used, 2, 0))
    result = stats.summarise(sink.trace())
    assert (result.outcome, result.cause, result.t_collapse_s) == ("collapsed", cause, 7.5)


def test_callers_who_were_refused_are_no_input(tmp_path):
    """They knock on while nobody is in: that is no silence of the engine."""
    sink = sink_of(tmp_path)
    for idx in range(30):
        sink.frame(frame(0, idx, 200.0) if idx < 10 else frame(1, idx, None, FrameStatus.REFUSED, sent_ns=None))
        sink.pool(sample(idx, 5, 0, 1))
    result = stats.summarise(sink.trace())
    assert (result.outcome, result.cause) == ("survived", None)


def test_an_engine_that_is_always_late_but_keeps_up_has_not_collapsed(tmp_path):
    sink = sink_of(tmp_path)
    for idx in range(20):
        sink.frame(frame(0, idx, 1400.0))
        sink.pool(sample(idx, 20, 1, 0))
    assert stats.summarise(sink.trace()).cause is None


def test_silence_at_the_border_is_max_len_even_where_no_frame_says_so(tmp_path):
    """vLLM answers a session that has no room for its next chunk with nothing at all."""
    sink = sink_of(tmp_path, max_model_len=28 * 10 + 20)
    for idx in range(20):
        sink.frame(frame(0, idx, 200.0 if idx < 10 else None))
        sink.pool(sample(idx, 12, 0, 1))
    assert stats.summarise(sink.trace()).cause == "max_len"


def test_a_turn_that_the_model_ended_sampled_one_more_than_it_said(tmp_path):
    sink = sink_of(tmp_path)
    for idx, tokens in enumerate((0, 2, 3, 4)):
        sink.frame(frame(0, idx, 200.0, tokens_out=tokens))
    sink.frame(frame(0, 4, None))
    frames = sink.trace().frames
    assert stats.num_sampled(frames, 4, True).tolist() == [1, 3, 4, 4]
    assert stats.num_sampled(frames, 4, False).tolist() == [0, 2, 3, 4]


def test_a_share_has_wilsons_interval():
    # Wilson 1927, worked in every textbook: 14 of 20 with z = 1.96.
    assert stats.wilson_interval(14, 20) == pytest.approx((0.4810, 0.8545), abs=1e-4)
    assert stats.wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_the_line_of_a_fill_reaches_the_wall(tmp_path):
    sink = sink_of(tmp_path)
    for tenth in range(200):
        sink.pool(sample(tenth / 10, min(40, round(0.2 * tenth)), 1, 1))
    trace_ = sink.trace()
    fit = stats.fit_fill(trace_.points.iloc[0], trace_.pool, 0.5)
    assert fit.t_sat_ns / NS_PER_S == pytest.approx(20, abs=0.5)
    assert fit.t_sat_low_ns <= fit.t_sat_ns <= fit.t_sat_high_ns
    with pytest.raises(ValueError, match="unbounded-n2: the pool is 10% full after 2 periods, a line takes 5"):
        stats.fit_fill(trace_.points.iloc[0], trace_.pool, 0.1)


def test_a_preempted_session_that_no_longer_fits_is_kv_full_with_blocks_to_spare(tmp_path):
    sink = sink_of(tmp_path)
    for idx in range(20):
        for session_id in range(2):
            sink.frame(frame(session_id, idx, None if idx >= 12 else 200.0))
        stalled = idx >= 12
        sink.pool(sample(idx, 15 if stalled else 38, 0 if stalled else 1, 2, preemptions=int(stalled)))
    assert stats.summarise(sink.trace()).cause == "kv_full"


def test_a_silence_in_which_nobody_speaks_is_no_collapse(tmp_path):
    """Agents that all think at once leave the engine nothing to answer."""
    sink = sink_of(tmp_path)
    for idx in [*range(4), *range(12, 16)]:
        sink.frame(frame(0, idx))
    assert stats.find_collapse_ns(sink.trace().frames, PERIOD_NS) is None


def test_a_silence_that_outlasts_the_callers_own_is_a_collapse(tmp_path):
    sink = sink_of(tmp_path)
    for idx in [*range(4), *range(12, 20)]:
        sink.frame(frame(0, idx, 200.0 if idx < 4 else None))
    assert stats.find_collapse_ns(sink.trace().frames, PERIOD_NS) == 3.2 * NS_PER_S


def test_frames_that_were_computed_anew_are_found(tmp_path):
    sink = sink_of(tmp_path)
    for idx in range(6):
        sink.frame(frame(0, idx, tokens_in=285 if idx in (2, 5) else 25))
    trace = sink.trace()
    assert stats.recycled_frames(trace.points.iloc[0], trace.frames).tolist() == [False, False, True] * 2


def test_a_collapse_between_two_samples_of_the_pool_has_a_cause(tmp_path):
    sink = sink_of(tmp_path)
    for idx in range(20):
        sink.frame(frame(0, idx, 200.0 if idx < 5 else None))
    sink.pool(sample(2, 10, 1, 1))
    sink.pool(sample(15, 40, 0, 2))
    assert stats.summarise(sink.trace()).cause == "kv_full"
