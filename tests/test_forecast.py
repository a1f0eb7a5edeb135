import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome.forecast import Forecast, Forecaster, without_falls
from metronome.frames import NS_PER_S
from metronome.saturation import fit_line
from metronome.window import Bound

TOTAL = 200


def forecaster(**changes):
    return Forecaster(**({"step_ns": NS_PER_S, "horizon_ns": 20 * NS_PER_S} | changes))


def feed(one, levels, total=TOTAL, num_sessions=6):
    """One level per second; the last forecast."""
    for t, used in enumerate(levels):
        seen = one.update(t * NS_PER_S, round(used), total, num_sessions)
    return seen


@given(st.floats(1, 8), st.integers(22, 60))
def test_a_steady_fill_is_foretold(rate, num_seconds):
    levels = [rate * t for t in range(num_seconds) if rate * t < TOTAL]
    seen = feed(forecaster(), levels)
    if len(levels) < 10:
        return
    real_s = (TOTAL - levels[-1]) / rate
    assert seen.tte_ns / NS_PER_S == pytest.approx(real_s, rel=0.15, abs=2)
    assert seen.tte_low_ns <= seen.tte_ns
    assert seen.tte_high_ns is None or seen.tte_high_ns >= seen.tte_ns


def test_nothing_is_foretold_from_a_few_samples():
    assert feed(forecaster(), [0, 10, 20, 30]) == Forecast()


def test_a_full_pool_is_exhausted_now_even_at_the_first_sample():
    seen = feed(forecaster(), [TOTAL])
    assert (seen.tte_low_ns, seen.tte_ns, seen.tte_high_ns, seen.alarm) == (0, 0, 0, True)


def test_many_samples_in_a_step_count_once():
    coarse, fine = forecaster(), forecaster()
    for tenth in range(300):
        used = int(0.25 * tenth)
        seen = fine.update(tenth * NS_PER_S // 10, used, TOTAL, 6)
        if tenth % 10 == 9:
            reference = coarse.update(tenth * NS_PER_S // 10, used, TOTAL, 6)
    assert seen == reference and seen.tte_ns is not None


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(40, 70))
def test_a_bounded_plateau_raises_no_alarm_even_untold(seed, percent):
    """Sliding windows give blocks back and take new ones, one at a time: the level wavers about its mean."""
    rng = np.random.default_rng(seed)
    num_sessions, top = 12, TOTAL * percent // 100 - 14
    offsets = rng.integers(0, 32, num_sessions)
    levels = [top + int(((28 * t + offsets) % 32 < 16).sum()) for t in range(200)]
    one = forecaster()
    for t, used in enumerate(levels):
        seen = one.update(t * NS_PER_S, used, TOTAL, num_sessions)
        assert t < 20 or not seen.alarm  # untold, a window's length of the plateau must have been seen


def test_the_fill_of_a_bounded_engine_raises_no_alarm_once_told_what_fits():
    bound = Bound(window=256, sinks=4, block_size=32)
    fill = [min(11 * t, 160) for t in range(60)]
    assert any(forecaster_alarm(fill, None))
    assert not any(forecaster_alarm(fill, bound.max_blocks(25)))
    assert any(forecaster_alarm(fill, bound.max_blocks(25), num_sessions=40))  # forty plateaus do not fit


def forecaster_alarm(levels, session_blocks, num_sessions=12):
    one = forecaster(session_blocks=session_blocks)
    return [one.update(t * NS_PER_S, used, TOTAL, num_sessions).alarm for t, used in enumerate(levels)]


def test_a_session_that_leaves_buys_time_and_does_not_bend_the_line():
    levels = [3.0 * t for t in range(30)]
    levels += [levels[-1] - 40 + 3 * t for t in range(1, 8)]
    seen = feed(forecaster(), levels)
    assert seen.tte_ns / NS_PER_S == pytest.approx((TOTAL - levels[-1]) / 3, rel=0.05)


def test_an_alarm_lasts_until_the_danger_is_clearly_over():
    one = forecaster()
    levels = [4.0 * t for t in range(32)]  # 124 of 200: the wall is 19 s away
    assert feed(one, levels).alarm
    again = one.update(32 * NS_PER_S, 124 - 30, TOTAL, 6)  # someone leaves: 26 s, above the horizon, still on
    assert again.tte_low_ns > 20 * NS_PER_S and again.alarm
    assert not one.update(33 * NS_PER_S, 20, TOTAL, 6).alarm


def test_falls_are_taken_out_and_the_last_level_stays():
    clean = without_falls(np.array([0.0, 3, 6, 9, 2, 5, 8, 11]))
    assert clean[-1] == 11
    assert np.diff(clean).tolist() == [3.0] * 7
    wavering = np.array([5.0, 6, 5, 6, 5, 6, 5, 6])
    assert without_falls(wavering).tolist() == wavering.tolist()


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=30, unique=True))
def test_the_line_is_that_of_theil_and_sen(y):
    x = np.arange(len(y), dtype=float)
    ours, theirs = fit_line(x, np.array(y)), scipy.stats.theilslopes(y, x)
    assert (ours.slope, ours.low, ours.high) == pytest.approx((theirs.slope, theirs.low_slope, theirs.high_slope))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"step_ns": 0}, "step_ns=0"), ({"horizon_ns": -1}, "horizon_ns=-1"), ({"num_steps": 3}, "num_steps=3")],
)
def test_impossible_forecasters_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        forecaster(**changes)
