import pytest
from synthetic import PERIOD_NS, facts, fill, frame, sample

from metronome import trace, warning
from metronome.frames import NS_PER_S


def sink_of(tmp_path, **changes):
    return trace.TraceWriter(tmp_path, "run").point(facts(**changes))


def filling(sink, stop_at=None):
    """Two sessions and a pool of 40 blocks that takes one block a period, up to `stop_at`."""
    for idx in range(60):
        full = stop_at is None and idx >= 40
        for session_id in range(2):
            sink.frame(frame(session_id, idx, None if full else 200.0))
        used = min(idx, 40 if stop_at is None else stop_at)
        sink.pool(sample(idx, used, 0 if full else 1, 2 if full else 1))


def test_a_collapse_is_foretold_and_its_lead_counted_in_periods(tmp_path):
    sink = sink_of(tmp_path, duration_ns=60 * NS_PER_S)
    filling(sink)
    found = warning.evaluate(sink.trace())
    assert (found.cause, found.num_alarms) == ("kv_full", 1)
    assert found.lead_periods == pytest.approx(warning.HORIZON_PERIODS, abs=2)


def test_a_fill_that_stops_in_time_was_a_false_alarm_at_worst(tmp_path):
    early, late = sink_of(tmp_path / "a", duration_ns=60 * NS_PER_S), sink_of(tmp_path / "b", duration_ns=60 * NS_PER_S)
    filling(early, stop_at=10)
    filling(late, stop_at=35)
    assert warning.evaluate(early.trace()).num_alarms == 0
    found = warning.evaluate(late.trace())
    assert (found.cause, found.num_alarms, found.lead_periods) == (None, 1, None)


def test_a_bounded_run_is_told_its_plateau(tmp_path):
    bounded = {"window": 256, "sinks": 4, "positions": "anchor", "kv": "window256+4", "num_blocks": 40}
    sink = sink_of(tmp_path, duration_ns=60 * NS_PER_S, **bounded)
    filling(sink, stop_at=35)
    assert warning.evaluate(sink.trace()).num_alarms == 0
    assert warning.evaluate(sink.trace(), told_bound=False).num_alarms == 1


def test_the_record_of_many_runs_is_one_line_per_mode(tmp_path):
    sink = sink_of(tmp_path, duration_ns=20 * NS_PER_S)
    fill(sink, stall_at=12)
    runs = [warning.evaluate(sink.trace())]
    (line,) = warning.conclude(runs)
    assert line.startswith("unbounded: warned before") and "of 1 full pools" in line
    assert PERIOD_NS == NS_PER_S
