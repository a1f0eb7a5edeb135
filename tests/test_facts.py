import pytest
from synthetic import facts

from metronome import facts as read_back
from metronome import trace
from metronome.window import Bound
from metronome.workload import Workload


def row(tmp_path, **changes):
    return trace.TraceWriter(tmp_path, "run").point(facts(**changes)).trace().points.iloc[0]


@pytest.mark.parametrize("mean_lifetime_s", [None, 12.5])
def test_a_workload_comes_back_as_it_was(tmp_path, mean_lifetime_s):
    load = Workload(period_ms=1000, deadline_ms=1000, duration_s=20, mean_lifetime_s=mean_lifetime_s)
    lifetime_ns = None if mean_lifetime_s is None else int(mean_lifetime_s * 1e9)
    point = row(tmp_path, mean_lifetime_ns=lifetime_ns, workload_seed=(0, 1, 2))
    assert read_back.workload_of(point) == load
    assert load.make_sessions(2, read_back.seed_of(point)) == load.make_sessions(2, (0, 1, 2))


def test_a_bound_comes_back_as_it_was(tmp_path):
    assert read_back.bound_of(row(tmp_path / "a")) is None
    point = row(tmp_path / "b", window=256, sinks=4, positions="keep")
    assert read_back.bound_of(point) == Bound(window=256, sinks=4, positions="keep", block_size=32)


def test_frames_come_back_as_they_were(tmp_path):
    tokens = read_back.tokens_of(row(tmp_path))
    assert (tokens.num_in, tokens.num_out, tokens.growth) == (25, 4, 28)
