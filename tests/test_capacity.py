"""N* and the ceiling, on engines whose capacity is known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import PERIOD_NS, facts, frame

from metronome.capacity import Bracket, Level, estimate, find_ceiling, find_n_star, ladder_levels, measure, spearman
from metronome.frames import FrameStatus
from metronome.saturation import FrameTokens, idle_ceiling, memory_ceiling
from metronome.trace import TraceWriter, join, read
from metronome.window import Bound


@given(st.integers(1, 600), st.integers(0, 300), st.integers(1, 300))
def test_the_search_ends_next_to_the_truth_wherever_it_was_presumed(truth, low, width):
    bracket, tried = Bracket(low, low + width), []
    while (sessions := bracket.next()) is not None:
        assert sessions not in tried and sessions > 0
        tried.append(sessions)
        bracket.tell(sessions, sessions <= truth)
    assert bracket.low <= truth < bracket.high
    assert bracket.high - bracket.low <= max(1, round(0.02 * bracket.high))
    assert len(tried) < 25


def test_what_is_known_already_is_not_asked_again():
    bracket = Bracket(0, 20)
    for sessions in (4, 8, 12, 16, 20):
        bracket.tell(sessions, sessions <= 9)
    assert (bracket.low, bracket.high, bracket.next()) == (8, 12, 10)


def test_one_that_was_served_above_one_that_was_not_does_not_count():
    bracket = Bracket(0, 20)
    for sessions, served in ((8, True), (9, False), (10, True)):
        bracket.tell(sessions, served)
    assert bracket.next() is None and bracket.low == 8


def level(**changes):
    values = {"sessions": 8, "p50_ns": 1e8, "p95_ns": 7e8, "late_share": 0.0, "utilisation": 0.1}
    return Level(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "served"),
    [({}, True), ({"p95_ns": 8.1e8}, False), ({"late_share": 0.02}, False), ({"late_share": 0.01}, True)],
)
def test_a_level_is_served_below_the_target_with_hardly_a_frame_late(changes, served):
    assert level(**changes).keeps(10**9, 0.8) is served


def test_what_happens_before_the_warm_up_is_over_does_not_count(tmp_path):
    frames = [frame(0, k, 900.0 if k < 10 else 300.0) for k in range(20)]
    table = pd.DataFrame([as_row(f) for f in frames])
    point = pd.Series({"point_id": "p", "sessions": 1, "warm_up_ns": 10 * PERIOD_NS, "period_ns": PERIOD_NS})
    seen = measure(point, table)
    assert (seen.p50_ns, seen.p95_ns, seen.late_share) == (300e6, 300e6, 0)
    assert seen.utilisation == pytest.approx(0.3)


def as_row(record):
    return {name: getattr(record, name) for name in record.__slots__}


def test_a_frame_that_never_came_is_late_and_infinitely_long():
    table = pd.DataFrame([as_row(frame(0, k, None if k == 5 else 300.0)) for k in range(10)])
    table["done_ns"] = table.done_ns.astype("Int64")
    point = pd.Series({"point_id": "p", "sessions": 1, "warm_up_ns": 0, "period_ns": PERIOD_NS})
    seen = measure(point, table)
    assert seen.late_share == 0.1 and np.isinf(seen.p95_ns) and np.isinf(seen.utilisation)


def test_an_estimate_has_the_interval_of_its_mean():
    assert estimate([44, 46, 45, 45]).mean == 45
    assert estimate([44, 46, 45, 45]).low == pytest.approx(45 - 3.1824 * np.std([44, 46, 45, 45], ddof=1) / 2, abs=1e-3)
    one = estimate([45])
    assert (one.mean, one.low, one.high) == (45, None, None)


def test_a_slope_is_told_from_a_flat_line():
    rising = [level(sessions=n, p95_ns=n * 1e7) for n in (4, 8, 16, 32)]
    assert spearman(rising) == pytest.approx(1)
    assert spearman([*rising, level(sessions=64, p95_ns=np.inf)]) == pytest.approx(1)
    assert abs(spearman([level(sessions=n, p95_ns=p) for n, p in ((4, 3e8), (8, 1e8), (16, 4e8), (32, 2e8))])) < 0.9


def trace_of(tmp_path, name, latencies_ms, **changes):
    with TraceWriter(tmp_path, "run") as writer:
        sink = writer.point(facts(point_id=name, **changes))
        for k, latency_ms in enumerate(latencies_ms):
            sink.frame(frame(0, k, latency_ms))
    return sink.trace()


def test_n_star_is_found_per_repeat_from_the_traces(tmp_path):
    """In the second repeat 12 was served by chance above 10, which was not."""
    traces = []
    for repeat, served in enumerate(({8: 1, 10: 1, 12: 0}, {8: 1, 10: 0, 12: 1})):
        for sessions, good in served.items():
            changes = {"sessions": sessions, "repeat_idx": repeat, "warm_up_ns": 0, "target_fraction": 0.8}
            (tmp_path / f"{repeat}-{sessions}").mkdir()
            traces.append(
                trace_of(
                    tmp_path / f"{repeat}-{sessions}",
                    f"n{sessions}-r{repeat}",
                    [300.0 if good else 900.0] * 5,
                    **changes,
                )
            )
    trace = join(traces)
    assert find_n_star(trace) == [10, 8]
    assert [x.sessions for x in ladder_levels(trace)] == [8, 10, 12]


BOUND = Bound(window=256, sinks=4, block_size=32)
TOKENS = FrameTokens(num_in=25, num_out=4)


def test_idle_sessions_hold_less_than_speaking_ones():
    for num_frames in range(1, 40):
        idle = idle_ceiling(TOKENS, num_frames, 600, 32, BOUND)
        assert idle >= memory_ceiling(TOKENS, num_frames, 600, 32, BOUND)
    assert idle_ceiling(TOKENS, 12, 5, 32, BOUND) == 0
    assert idle_ceiling(TOKENS, 8, 140, 32, None) == 140 // 7  # 224 tokens fill seven blocks


def test_the_ceiling_counts_sessions_all_of_whose_frames_were_answered(tmp_path):
    with TraceWriter(tmp_path, "run") as writer:
        sink = writer.point(facts(point_id="ceiling", sessions=None, num_blocks=20))
        for session_id in range(4):
            for k in range(3):
                lost = session_id == 3 and k == 2
                sink.frame(frame(session_id, k, None if lost else 200.0, FrameStatus.LOST if lost else None))
    found = find_ceiling(read(tmp_path, "cliff_sweep"))
    assert found.measured == 3
    assert found.predicted == idle_ceiling(TOKENS, 3, 20, 32, None) == (20 - 3) // 3 + 1
