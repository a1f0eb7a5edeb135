import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.workload import Workload


def workload(**changes):
    return Workload(**({"period_ms": 1000, "deadline_ms": 1000, "duration_s": 10} | changes))


@given(st.integers(1, 300), st.integers(80, 2000), st.integers(1, 50), st.sampled_from(["spread", "aligned"]))
def test_releases_lie_on_an_absolute_schedule(num_sessions, period_ms, num_frames, phases):
    load = workload(period_ms=period_ms, duration_s=num_frames * period_ms / 1000, phases=phases)
    sessions = load.make_sessions(num_sessions)
    assert len(sessions) == num_sessions
    for spec in sessions:
        releases = [spec.release_ns(k) for k in range(spec.num_frames)]
        assert 0 <= releases[0] < period_ms * NS_PER_MS
        assert {b - a for a, b in zip(releases, releases[1:], strict=False)} <= {period_ms * NS_PER_MS}
        assert spec.end_ns == releases[-1] + spec.deadline_ns


def test_spread_phases_leave_equal_gaps():
    first = [s.release_ns(0) / NS_PER_MS for s in workload().make_sessions(8)]
    assert first == [0, 125, 250, 375, 500, 625, 750, 875]


def test_aligned_phases_release_everybody_at_once():
    assert {s.release_ns(3) for s in workload(phases="aligned").make_sessions(8)} == {3000 * NS_PER_MS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period_ms": 0}, "workload.period_ms=0: must be 1 ms or more"),
        ({"deadline_ms": -5}, "workload.deadline_ms=-5"),
        ({"duration_s": 0.5}, "workload.duration_s=0.5: shorter than one period of 1000 ms"),
        ({"phases": "drifting"}, "workload.phases='drifting': must be one of spread, random, aligned"),
    ],
)
def test_impossible_workloads_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        workload(**changes)


def test_zero_sessions_are_refused():
    with pytest.raises(ValueError, match="workload.sessions has 0"):
        workload().make_sessions(0)


@given(st.integers(1, 12), st.integers(0, 1000), st.floats(1, 60))
def test_sessions_of_a_line_follow_each_other_without_a_gap(num_sessions, seed, mean_lifetime_s):
    load = workload(duration_s=60, mean_lifetime_s=mean_lifetime_s)
    specs = load.make_sessions(num_sessions, seed)
    assert [s.session_id for s in specs] == list(range(len(specs)))
    for line in range(num_sessions):
        own = [s for s in specs if s.line == line]
        releases = [s.release_ns(k) for s in own for k in range(s.num_frames)]
        assert len(releases) == load.num_frames and len(set(releases)) == len(releases)
        assert {b - a for a, b in zip(releases, releases[1:], strict=False)} <= {1000 * NS_PER_MS}


def test_lifetimes_have_their_mean_and_belong_to_their_seed():
    load = workload(duration_s=5000, mean_lifetime_s=20)
    first, again, other = (load.make_sessions(4, seed) for seed in ((0, 1), (0, 1), (0, 2)))
    assert first == again != other
    lengths = [s.num_frames for s in first]
    assert 17 < sum(lengths) / len(lengths) < 23


def test_a_lifetime_below_a_period_is_refused():
    with pytest.raises(ValueError, match=r"workload.mean_lifetime_s=0.5: shorter than one period of 1000 ms"):
        workload(mean_lifetime_s=0.5)


def test_a_duration_of_whole_periods_holds_them_all():
    for period_ms in range(80, 2001):
        for num_frames in (1, 7, 29, 150):
            load = workload(period_ms=period_ms, duration_s=num_frames * period_ms / 1000)
            assert load.num_frames == num_frames


def test_random_phases_fill_the_period_and_belong_to_their_seed():
    load = workload(phases="random")
    first, again, other = (load.make_sessions(200, seed) for seed in (1, 1, 2))
    assert first == again != other
    phases = np.array([s.phase_ns for s in first]) / load.period_ns
    assert 0 <= phases.min() < 0.05 and 0.95 < phases.max() < 1 and 0.4 < phases.mean() < 0.6


def test_callers_come_as_often_as_the_load_says_and_stay_their_time():
    load = workload(duration_s=4000, mean_lifetime_s=20)
    specs = load.make_arrivals([10, 30], seed=3)
    assert specs == load.make_arrivals([10, 30], seed=3) != load.make_arrivals([10, 30], seed=4)
    first = [s for s in specs if s.release_ns(0) < 2000 * NS_PER_S]
    assert len(first) == pytest.approx(10 / 20 * 2000, rel=0.1)
    assert len(specs) - len(first) == pytest.approx(30 / 20 * 2000, rel=0.1)
    assert np.mean([s.num_frames for s in first]) == pytest.approx(20, rel=0.1)
    assert [s.release_ns(0) for s in specs] == sorted(s.release_ns(0) for s in specs)
    assert all(s.release_ns(s.num_frames - 1) < load.duration_ns for s in specs)


def test_arrivals_need_a_lifetime_and_a_load():
    with pytest.raises(ValueError, match="workload.mean_lifetime_s=null: callers who come and go"):
        workload().make_arrivals([3])
    with pytest.raises(ValueError, match=r"workload.offered=\[0\]: name one load or more"):
        workload(mean_lifetime_s=20).make_arrivals([0])


def bursty(**changes):
    return workload(**({"duration_s": 60, "burst_frames": 4, "silence_periods": 6} | changes))


def test_a_session_speaks_in_bursts_and_is_silent_between_them():
    (spec,) = bursty().make_sessions(1)
    seconds = [spec.release_ns(k) // NS_PER_S for k in range(spec.num_frames)]
    assert seconds == [start + k for start in range(0, 60, 10) for k in range(4)]


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 9), st.integers(1, 80))
def test_bursts_end_with_the_duration(num_sessions, burst_frames, silence_periods, duration_s):
    load = bursty(burst_frames=burst_frames, silence_periods=silence_periods, duration_s=duration_s)
    specs = load.make_sessions(num_sessions)
    assert len(specs) == num_sessions
    for spec in specs:
        assert 1 <= spec.num_frames <= load.num_frames
    always_on = [s for s in specs if s.start_ns == 0]
    assert (
        always_on[0].release_ns(load.num_frames - 1)
        < duration_s * NS_PER_S
        <= (always_on[0].release_ns(load.num_frames))
    )


def test_bursts_of_the_lines_come_one_after_the_other():
    starts = [s.start_ns // NS_PER_S for s in bursty().make_sessions(5)]
    assert starts == [0, 2, 4, 6, 8]
    assert {s.start_ns for s in bursty(phases="aligned").make_sessions(5)} == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"burst_frames": None}, "workload.silence_periods=6: needs workload.burst_frames"),
     ({"burst_frames": 0}, "workload.burst_frames=0"),
     ({"mean_lifetime_s": 30}, "set workload.mean_lifetime_s=null")],
)  # fmt: skip
def test_impossible_bursts_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        bursty(**changes)
