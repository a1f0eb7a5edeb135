import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.saturation import (
    FrameTokens,
    first_order_t_sat_ns,
    fit_rho,
    memory_ceiling,
    peak_blocks,
    predict_t_sat_ns,
)
from metronome.window import Bound, blocks_for
from metronome.workload import Workload

VOICE = FrameTokens(num_in=25, num_out=4)


def sessions(num_sessions, duration_s=60, phases="spread"):
    return Workload(period_ms=1000, deadline_ms=1000, duration_s=duration_s, phases=phases).make_sessions(num_sessions)


def brute_force(specs, tokens, num_blocks, block_size):
    """Token by token: every session's cache written out, blocks counted from scratch; who has said all is gone."""
    cached = {s.session_id: 0 for s in specs}
    total = {s.session_id: s.num_frames * tokens.growth for s in specs}
    events = sorted((s.release_ns(k), s.session_id) for s in specs for k in range(s.num_frames))
    for release_ns, session_id in events:
        for _ in range(tokens.num_in + tokens.num_out - 1):
            cached[session_id] += 1
            if sum(blocks_for(n, block_size) for n in cached.values()) > num_blocks:
                return release_ns
        if cached[session_id] == total[session_id]:
            cached[session_id] = 0
    return None


@settings(max_examples=60, deadline=None)
@example(8, 6, 8, 193, 16)  # full only if those who have said their last frame stayed
@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 8), st.integers(8, 200), st.sampled_from([16, 32, 64]))
def test_prediction_equals_counting_every_token(num_sessions, num_in, num_out, num_blocks, block_size):
    tokens = FrameTokens(num_in=num_in, num_out=num_out)
    specs = sessions(num_sessions, duration_s=30)
    assert predict_t_sat_ns(specs, tokens, num_blocks, block_size) == brute_force(specs, tokens, num_blocks, block_size)


def test_the_stall_seen_on_the_engine():
    # 8 sessions, 63 usable blocks of 32: the engine answered 8 frames of each session but the last one's ninth.
    assert predict_t_sat_ns(sessions(8), VOICE, 63, 32) == 8 * NS_PER_S + 875 * NS_PER_MS


def test_a_pool_that_is_never_filled_has_no_saturation():
    assert predict_t_sat_ns(sessions(4, duration_s=40), VOICE, 149, 32) is None


def test_a_bounded_load_saturates_only_if_its_plateau_does_not_fit():
    bound = Bound(window=256, sinks=4, block_size=32)
    plateau = max(peak_blocks(k, VOICE, 32, bound) for k in range(200))
    assert plateau <= bound.max_blocks(25)
    assert predict_t_sat_ns(sessions(8, duration_s=200), VOICE, 8 * plateau, 32, bound) is None
    assert predict_t_sat_ns(sessions(8, duration_s=200), VOICE, 8 * (plateau - 2), 32, bound) is not None


def test_the_first_order_line_is_within_a_block_per_session_of_the_exact_time():
    for num_sessions in (4, 8, 12):
        line = first_order_t_sat_ns(num_sessions, VOICE, NS_PER_S, 149, 32)
        exact = predict_t_sat_ns(sessions(num_sessions, duration_s=100), VOICE, 149, 32)
        assert line > exact  # rounding up to blocks fills the pool earlier, never later
        assert line - exact < (32 / VOICE.growth + 1) * NS_PER_S


def test_what_is_already_in_the_pool_brings_the_end_forward():
    empty, half = (first_order_t_sat_ns(8, VOICE, NS_PER_S, 149, 32, rho0) for rho0 in (0.0, 0.5))
    assert half == empty / 2


def test_sessions_that_leave_make_room():
    load = Workload(period_ms=1000, deadline_ms=1000, duration_s=60, mean_lifetime_s=8)
    gone, stay = predict_t_sat_ns(load.make_sessions(4, 3), VOICE, 60, 32), predict_t_sat_ns(sessions(4), VOICE, 60, 32)
    assert stay is not None and (gone is None or gone > stay)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(2, 12), st.integers(0, 2))
def test_the_ceiling_is_the_most_sessions_that_never_fill_the_pool(num_in, num_out, window_blocks, sink_blocks):
    tokens = FrameTokens(num_in=num_in, num_out=num_out)
    bound = Bound(window=32 * window_blocks, sinks=32 * sink_blocks, block_size=32)
    ceiling = memory_ceiling(tokens, 150, 200, 32, bound)
    # A session is gone after its last frame: a peak that comes only then, all sessions never have at once.
    peaks = [peak_blocks(k, tokens, 32, bound) for k in range(150)]
    assume(max(peaks) == max(peaks[:-1]))
    for num_sessions, fills in ((ceiling, False), (ceiling + 1, True)):
        specs = sessions(num_sessions, duration_s=150, phases="aligned")
        # Aligned sessions reach their peaks together, one after the other.
        assert (predict_t_sat_ns(specs, tokens, 200, 32, bound) is not None) == fills


def test_the_ceiling_of_an_unbounded_pool_depends_on_how_long_sessions_last():
    assert memory_ceiling(VOICE, 100, 149, 32, None) == 149 // blocks_for(2800, 32)
    assert memory_ceiling(VOICE, 10, 149, 32, None) == 149 // blocks_for(280, 32)


def test_a_fitted_line_gives_back_its_parameters():
    t_ns = np.arange(0, 20 * NS_PER_S, NS_PER_S, dtype=float)
    noise = np.random.default_rng(0).normal(0, 0.004, len(t_ns))
    fit = fit_rho(t_ns, 0.1 + 0.02 * t_ns / NS_PER_S + noise)
    assert fit.rho0 == pytest.approx(0.1, abs=0.01)
    assert fit.rate_per_ns * NS_PER_S == pytest.approx(0.02, rel=0.03)
    assert fit.t_sat_low_ns < 45 * NS_PER_S < fit.t_sat_high_ns
    assert fit.t_sat_high_ns - fit.t_sat_low_ns < 6 * NS_PER_S


def test_a_level_that_does_not_rise_is_never_full():
    fit = fit_rho(np.arange(20) * 1e9, np.full(20, 0.4))
    assert (fit.t_sat_low_ns, fit.t_sat_ns, fit.t_sat_high_ns) == (None, None, None)
