"""The real engine, the real model, real speech: into the stall without the bound, past it with the bound."""

import json

import pytest
from command import run_experiment

from metronome import stats, trace
from metronome.frames import NS_PER_S

pytestmark = [pytest.mark.engine, pytest.mark.alone]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """`+exp=smoke` and, on each engine, a small point after it: a stalled engine must serve again."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    run_experiment(out, "+exp=smoke", "workload.sessions=[4,2]", env={})  # every process that a service has
    return out


@pytest.fixture(scope="module")
def manifest(smoke):
    return json.loads((smoke / "manifest.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def run(smoke):
    return trace.read(smoke, "smoke")


def point(manifest, point_id):
    return next(p for p in manifest["points"] if p["point_id"] == point_id)


def test_the_unbounded_engine_stalls_when_the_block_arithmetic_says(manifest):
    collapsed = point(manifest, "unbounded-n4")
    assert collapsed["outcome"] in ("collapsed", "invalid")  # invalid: on a busy machine the harness may be late
    assert collapsed["cause"] == "kv_full"
    assert abs(collapsed["t_collapse_s"] - collapsed["predicted_t_sat_s"]) <= 2.0  # one frame period
    assert collapsed["frames"]["lost"] > 0 and collapsed["rho_max"] == 1.0


def test_the_stall_is_silent(manifest, run):
    assert point(manifest, "unbounded-n4")["frontend_latency_ms"]["p99"] <= 2000
    stalled = run.of("unbounded-n4")
    collapse_ns = stats.find_collapse_ns(stalled.frames, 2 * NS_PER_S)
    after = stalled.pool[(stalled.pool.t_ns > collapse_ns + 2 * NS_PER_S) & (stalled.pool.t_ns < 20 * NS_PER_S)]
    assert len(after) > 20  # sampled through the stall, every 100 ms
    assert set(after.running) == {0} and set(after.waiting) == {4}
    assert set(after.blocks_used) == set(after.blocks_total)
    assert after.preemptions.max() == 0
    assert after.stats_age_ns.max() < NS_PER_S  # the engine itself says so, it has not merely gone quiet
    assert not after.ttft_ms.explode().dropna().size and not after.inter_token_ms.explode().dropna().size


def test_the_same_load_survives_with_the_window(manifest):
    survived = point(manifest, "window64+4-n4")
    assert survived["outcome"] in ("survived", "invalid")
    assert (survived["cause"], survived["t_collapse_s"]) == (None, None)
    assert survived["frames"]["lost"] == 0 and survived["rho_max"] < 1.0


def test_a_session_holds_what_the_block_arithmetic_says(run):
    stalled = run.of("unbounded-n4")
    answered = stalled.frames[stalled.frames.status == "ok"]
    kept = answered.groupby("session_id").kv_tokens.max()
    blocks = int((-(-kept // 32)).sum())
    assert blocks <= stalled.pool.blocks_used.max() <= blocks + 4  # the frames in flight took at most one more each


def test_a_stalled_engine_serves_again_once_its_sessions_are_gone(manifest):
    assert point(manifest, "unbounded-n2")["t_collapse_s"] is None
    assert point(manifest, "unbounded-n2")["frames"]["ok"] > 0
    assert [e["kv"] for e in manifest["engines"]] == ["unbounded", "window64+4"]  # one start per mode


def test_the_bound_says_in_which_processes_it_is_live(manifest):
    stock, bounded = manifest["engines"]
    assert stock["bound_live_in"] == []
    assert {"worker", "scheduler"} <= {report["role"] for report in bounded["bound_live_in"]}
    assert {report["window"] for report in bounded["bound_live_in"]} == {64}


def test_every_frame_has_exactly_one_status(run):
    for _, frames in run.frames.groupby("point_id"):
        sessions = frames.session_id.nunique()
        assert len(frames) == sessions * 10
        assert not frames.duplicated(["session_id", "frame_idx"]).any()
