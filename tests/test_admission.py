"""Policies on their own: each known way in which limiters of this kind go wrong, without an engine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome.admission import (
    UNLIMITED,
    AimdLimit,
    ControlWindow,
    FixedLimit,
    GrowthAwareLimit,
    MinLimit,
    Unlimited,
)
from metronome.frames import NS_PER_S
from metronome.window import blocks_for

GOOD, BAD = [0.3] * 20, [1.4] * 20


def window(num_active, pressure=GOOD, t_s=0):
    return ControlWindow(t_ns=t_s * NS_PER_S, num_active=num_active, pressure=pressure)


def now(limit):
    return limit.limit(0, {})


def drive(limit, capacity, num_windows, offered=10_000, leaving=0.3, start_active=0):
    """A service whose latency grows with its sessions: at `capacity` it is 0.8 of the deadline. The limit over time."""
    active, limits = start_active, []
    for _ in range(num_windows):
        active = max(active - max(1, round(leaving * active)), 0) if active > now(limit) else active
        active = min(offered, max(active, int(now(limit))))
        limit.update(window(active, [0.8 * active / capacity] * 20))
        limits.append(now(limit))
    return limits


def test_it_starts_slowly_by_doubling_and_not_by_one():
    """Netflix/concurrency-limits#35: from 1 to 100 one by one takes a hundred windows."""
    limits = drive(AimdLimit(start=1, ceiling=128), capacity=1000, num_windows=7)
    assert limits == [2, 4, 8, 16, 32, 64, 128]


def test_slow_start_ends_before_the_target_at_what_is_in_use():
    """A limit doubled far past those who are in would let in all who are on their way, and they stay."""
    limit = AimdLimit(start=4, target=0.8)
    for num_active in (4, 8, 16, 32):
        limit.update(window(num_active, [0.1] * 20))
    assert now(limit) == 64
    limit.update(window(58, [0.7] * 20))
    assert now(limit) == 58
    limit.update(window(58, [0.7] * 20))
    assert now(limit) == 59  # one by one from here
    limit.update(window(59, [0.75] * 20))
    assert now(limit) == 59  # near enough


@pytest.mark.parametrize("capacity", [5, 20, 45, 209])
def test_it_settles_near_the_capacity_and_stays(capacity):
    limits = drive(AimdLimit(start=1), capacity, num_windows=120)
    settled = np.floor(limits[40:])  # sessions that may be in
    assert 0.85 * capacity <= settled.mean() <= 1.1 * capacity
    assert settled.max() <= capacity + 2


def test_one_bad_window_cuts_once():
    """vector#3255: cuts that pile up before the first has shown its effect."""
    limit = AimdLimit(start=40, decrease=0.9)
    limit.update(window(40, BAD))
    assert now(limit) == 36
    limit.update(window(40, BAD))  # the window in which the cut takes effect
    assert now(limit) == 36
    for _ in range(10):
        limit.update(window(40, BAD))  # only their leaving can help: four are still above the limit
    assert now(limit) == 36
    limit.update(window(36, BAD))
    assert now(limit) == pytest.approx(32.4)


def test_it_recovers_from_an_outage_within_windows_of_what_it_lost():
    """vector#3255 again, the other half: after the outage the limit must come back."""
    limit = AimdLimit(start=40)
    for _ in range(6):
        limit.update(window(int(now(limit)), BAD))
    low = now(limit)
    assert 25 < low < 36
    limits = drive(limit, capacity=45, num_windows=25, start_active=int(low))
    assert max(limits) > 40


def test_it_grows_only_where_the_limit_is_really_used():
    """An idle service says nothing of its capacity."""
    limit = AimdLimit(start=10)
    for _ in range(50):
        limit.update(window(3))
    assert now(limit) == 10


def test_it_never_probes_downwards():
    """envoy#8337, #9007: a limiter that shrinks to measure hurts those who are served."""
    limit = AimdLimit(start=10, ceiling=50)
    seen = [now(limit)]
    for _ in range(100):
        limit.update(window(int(now(limit))))
        seen.append(now(limit))
    assert seen == sorted(seen) and seen[-1] == 50


def test_a_frame_that_still_waits_counts_with_its_age():
    """A stalled engine answers nothing: waiting for completions would see no latency at all."""
    limit = AimdLimit(start=20)
    stalled = ControlWindow(t_ns=0, num_active=20, pressure=[], waiting=[2.5] * 20)
    limit.update(stalled)
    assert now(limit) == 18
    quiet = AimdLimit(start=20)
    quiet.update(window(20, []))
    assert now(quiet) == 20


def test_frames_that_have_only_just_come_hide_nothing():
    """Their ages are small because they are young; their latency is not known yet."""
    limit = AimdLimit(start=20, target=0.8)
    limit.update(ControlWindow(t_ns=0, num_active=20, pressure=[0.9] * 10, waiting=[0.01] * 1000))
    assert now(limit) == 18


def test_a_few_slow_frames_below_the_quantile_change_nothing():
    limit = AimdLimit(start=20, target_quantile=0.95)
    limit.update(window(20, [0.3] * 97 + [5.0] * 3))
    assert now(limit) == 40


def test_small_limits_neither_stick_nor_vanish():
    """Truncated to integers, 0.9 x 9 is 8 and 0.9 x 1 is 0."""
    limit = AimdLimit(start=1)
    for _ in range(50):
        limit.update(window(1, BAD))
    assert now(limit) == 1
    assert max(drive(limit, capacity=3, num_windows=20, start_active=1)) >= 2


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=200))
def test_it_stays_between_floor_and_ceiling(windows):
    limit = AimdLimit(start=8, floor=2, ceiling=64)
    for num_active, good in windows:
        limit.update(window(num_active, GOOD if good else BAD))
        assert 2 <= now(limit) <= 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floor": 5, "start": 4}, "floor=5, start=4"),
        ({"floor": 0}, "floor=0"),
        ({"start": 9, "ceiling": 8}, "ceiling=8"),
        ({"decrease": 1.0}, "decrease=1.0: must lie between 0 and 1"),
        ({"target": 0}, "target=0: must be above 0"),
    ],
)
def test_impossible_policies_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        AimdLimit(**options)


def test_fixed_unlimited_and_the_stricter_of_two():
    assert now(FixedLimit(7)) == 7 and now(Unlimited()) == UNLIMITED
    both = MinLimit(FixedLimit(7), AimdLimit(start=4))
    assert now(both) == 4
    both.update(window(4))
    assert now(both) == 7
    with pytest.raises(ValueError, match="admission.sessions=0"):
        FixedLimit(0)


def growth_aware(**changes):
    values = {"num_blocks": 149, "block_size": 32, "growth": 28, "period_ns": NS_PER_S, "lifetime_ns": 30 * NS_PER_S}
    return GrowthAwareLimit(**(values | changes))


def fill_up(limit, t_ns=0):
    admitted = {}
    while len(admitted) + 1 <= limit.limit(t_ns, admitted):
        admitted[len(admitted)] = t_ns
    return len(admitted)


def test_growing_sessions_are_counted_by_what_they_will_hold():
    """vllm#49445 counts requests as they are; twelve sessions fit now and fill the pool in a minute."""
    young = fill_up(growth_aware())
    assert 1 <= young < 149 // 2  # each holds two blocks at first
    assert fill_up(growth_aware(num_blocks=600)) > 3 * young
    assert fill_up(growth_aware(lifetime_ns=10 * NS_PER_S)) > young
    assert fill_up(growth_aware(session_blocks=10)) > young  # a bound is worth sessions


def test_an_old_session_leaves_less_room_than_a_young_one():
    limit = growth_aware(num_blocks=400)
    young, old = {0: 90 * NS_PER_S}, {0: 0}
    ages = [np.array([90 * NS_PER_S - since for since in one.values()] + [0.0]) for one in (young, old)]
    assert limit.peak_blocks(ages[1]) > limit.peak_blocks(ages[0])


def most_in_use(seed):
    """Blocks and sessions: as many ask as there may be, for twenty lifetimes; sessions last as long as they like."""
    limit, rng = growth_aware(num_blocks=600), np.random.default_rng(seed)
    admitted, ends, most_used, most_in = {}, {}, 0, 0
    for period in range(600):
        t_ns = period * NS_PER_S
        for session_id in [s for s, end in ends.items() if end <= period]:
            del admitted[session_id], ends[session_id]
        while len(admitted) + 1 <= limit.limit(t_ns, admitted):
            session_id = period * 1000 + len(admitted)
            admitted[session_id], ends[session_id] = t_ns, period + rng.geometric(1 / 30)
        used = sum(blocks_for((t_ns - since) // NS_PER_S * 28 + 28, 32) for since in admitted.values())
        most_used, most_in = max(most_used, used), max(most_in, len(admitted))
    return most_used, most_in


def test_what_it_admits_seldom_fills_an_unbounded_pool():
    """`margin` deviations are no certainty where nothing bounds a session: of seeds 0 to 1000, 18 fill it."""
    used, sessions = np.array([most_in_use(seed) for seed in range(100)]).T
    assert (used > 600).sum() <= 2
    assert used.min() > 200 and sessions.min() > 8  # and it is no policy that lets nobody in
