"""What callers got per control window, from traces whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from synthetic import PERIOD_NS, facts, frame, sample

from metronome.frames import NS_PER_S, Action, Decision, FrameStatus
from metronome.service import converged_after, judge, mean_active, recovered_after, steps, windows
from metronome.trace import TraceWriter


def decision(t_s, action, session_id=None, limit=10.0, num_active=0):
    return Decision(t_ns=int(t_s * NS_PER_S), session_id=session_id, action=action, limit=limit, num_active=num_active)


def trace_of(tmp_path, frames, decisions, duration_s=20, offered=(4.0,)):
    """duration_s: without the period at the end, when callers hang up."""
    with TraceWriter(tmp_path, "run") as writer:
        sink = writer.point(
            facts(
                point_id="aimd", sessions=None, duration_ns=duration_s * NS_PER_S + PERIOD_NS, policy="aimd",
                control_ns=4 * NS_PER_S, offered=offered, n_star=4.0, target_fraction=0.8,
            )
        )  # fmt: skip
        for record in frames:
            sink.frame(record)
        for one in decisions:
            sink.decision(one)
        for second in range(duration_s):
            sink.pool(sample(second, blocks_used=min(second, 20)))
    return sink.trace()


def test_a_window_counts_frames_by_their_release(tmp_path):
    frames = [frame(0, k, None if k >= 16 else 1200.0 if k >= 12 else 300.0) for k in range(20)]
    frames += [frame(1, k, None, FrameStatus.REFUSED) for k in range(4)]
    updates = [decision(4 * i, Action.UPDATE, limit=10.0 + i, num_active=1) for i in range(1, 6)]
    changes = [decision(0, Action.ADMIT, 0, num_active=1), decision(1, Action.REFUSE, 1, num_active=1)]
    table = windows(trace_of(tmp_path, frames, changes + updates))
    assert list(table.t_ns / NS_PER_S) == [4, 8, 12, 16, 20]
    assert list(table.p95_ns / NS_PER_S) == pytest.approx([0.3, 0.3, 0.3, 1.2, np.inf])
    assert list(table.late_share) == [0, 0, 0, 1, 1]
    assert list(table.goodput) == [1, 1, 1, 0, 0]
    assert list(table.limit) == [11, 12, 13, 14, 15]
    assert list(table.active) == [1, 1, 1, 1, 1]
    assert list(table.refused) == [1, 0, 0, 0, 0]
    assert table.rho.iloc[-1] == 19 / 40


def test_sessions_in_are_averaged_over_time_not_over_events():
    changes = pd.DataFrame(
        [(0, Action.ADMIT, 1), (4, Action.ADMIT, 2), (5, Action.UPDATE, 2), (9, Action.LEAVE, 1), (10, Action.SHED, 0)],
        columns=["t_ns", "action", "num_active"],
    )
    assert list(mean_active(changes, np.array([0.0, 2, 8, 20]), np.array([4.0, 6, 12, 30]))) == [1, 1.5, 0.75, 0]


def table_of(active=(), p95=(), late=None):
    size = max(len(active), len(p95))
    return pd.DataFrame(
        {
            "t_ns": np.arange(1, size + 1) * 4.0 * NS_PER_S,
            "active": active or [0.0] * size,
            "p95_ns": np.array(p95 or [0.0] * size) * NS_PER_S,
            "late_share": late or [0.0] * size,
        }
    )


def test_convergence_is_when_sessions_in_come_near_and_not_before():
    assert converged_after(table_of([10, 40, 80, 100, 100, 100, 100, 100]), 100) == 5  # its mean over three windows
    assert converged_after(table_of([10, 10, 10]), 100) is None


def test_recovery_takes_three_good_windows():
    table = table_of(p95=[0.3, 2.0, 1.9, 0.3, 1.0, 0.3, 0.3, 0.3])
    assert recovered_after(table, 4 * NS_PER_S, NS_PER_S, 0.8) == 4
    assert recovered_after(table_of(p95=[0.3] * 5), 4 * NS_PER_S, NS_PER_S, 0.8) == 0
    assert recovered_after(table_of(p95=[2.0] * 5), 0, NS_PER_S, 0.8) is None
    assert recovered_after(table_of(p95=[0.3] * 5, late=[0.1] * 5), 0, NS_PER_S, 0.8) is None


def test_a_policy_is_judged_by_its_last_third_and_by_its_frames_since_it_converged(tmp_path):
    frames = [frame(i, k, 1200.0 if k < 4 else 300.0, num_sessions=4) for i in range(4) for k in range(24)]
    changes = [decision(0, Action.ADMIT, i, num_active=i + 1) for i in range(4)]
    updates = [decision(4 * i, Action.UPDATE, limit=2.0 * i, num_active=4) for i in range(1, 7)]
    control = judge(trace_of(tmp_path, frames, changes + updates, duration_s=24), n_star=4)
    assert control.limit == 11 and control.active == 4
    assert control.converged_windows == 1 and control.late_share == 0


def test_steps_are_judged_once_they_have_settled(tmp_path):
    """Two steps of 16 s; in the first half of the second one frames are still late."""
    frames = [frame(0, k, 1200.0 if 16 <= k < 24 else 300.0) for k in range(32)]
    frames += [frame(1, k, None, FrameStatus.REFUSED) for k in (17, 18)]
    refusals = [decision(17, Action.REFUSE, 1)]
    trace = trace_of(tmp_path, frames, refusals, duration_s=31, offered=(2.0, 4.0))
    table = steps(trace.points.iloc[0], windows(trace))
    assert list(table.offered) == [2, 4] and list(table.refused) == [0, 1]
    assert list(table.goodput) == [1, 1]
    assert list(table.end_ns / PERIOD_NS) == [16, 32]
