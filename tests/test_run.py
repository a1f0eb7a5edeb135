"""The command itself, on the engine that costs nothing."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import catalogue, saturation
from experiments.manifest import _strict
from metronome import trace

ROOT = Path(__file__).parent.parent


def command(*overrides):
    return [sys.executable, "-m", "experiments.run", "target=none", "workload.period_ms=40", *overrides]


def run(*overrides, **kwargs):
    return subprocess.run(command(*overrides), cwd=ROOT, capture_output=True, text=True, check=False, **kwargs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    done = run("kv=compare", "workload.sessions=[2,3]", "workload.duration_s=1", f"out.dir={out}")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_run_directory_holds_manifest_and_trace(finished):
    out, _ = finished
    manifest = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] == "complete"
    assert [p["point_id"] for p in manifest["points"]] == [
        "unbounded-n2", "unbounded-n3", "window256+4-n2", "window256+4-n3",
    ]  # fmt: skip
    keys = {"point_id", "model", "kv", "sessions", "outcome", "cause", "t_collapse_s", "predicted_t_sat_s", "frames",
            "engine_latency_ms", "frontend_latency_ms", "rho_max"}  # fmt: skip
    for point in manifest["points"]:
        assert keys <= set(point)
        assert sum(point["frames"].values()) == point["sessions"] * 25
    assert len(trace.read(out, "run").frames) == 2 * (2 + 3) * 25


def test_the_table_has_a_row_per_point(finished):
    _, printed = finished
    rows = [line for line in printed.splitlines() if line.startswith("│")]
    assert [row.split("│")[2].strip() for row in rows] == ["2", "3", "2", "3"]
    # On a busy machine the harness may be late, and says so; a collapse it must not see.
    assert {row.split("│")[3].strip() for row in rows} <= {"survived", "invalid"}


def test_a_directory_is_never_shared(finished):
    out, _ = finished
    done = run("workload.duration_s=1", f"out.dir={out}")
    assert done.returncode == 2 and "exists already; name a new directory" in done.stderr


def test_a_refusal_needs_no_engine_and_leaves_no_directory(tmp_path):
    done = run("+kv.window_tokenz=5", f"out.dir={tmp_path / 'new'}", timeout=30)
    assert done.returncode == 2
    assert done.stderr == "refused: kv.window_tokenz=5: unknown key; did you mean kv.window?\n"
    assert not (tmp_path / "new").exists()


def test_ctrl_c_keeps_what_there_is(tmp_path):
    out = tmp_path / "cut"
    child = subprocess.Popen(
        command("workload.duration_s=60", f"out.dir={out}"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not list(out.glob("frames/*.parquet")) and time.monotonic() < until:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert f"interrupted; what there is lies in {out}" in errors
    assert json.loads((out / "manifest.json").read_text())["status"] == "interrupted"
    frames = trace.read(out, "run").frames
    assert 0 < len(frames) < 8 * 1500


def test_json_has_no_infinity():
    assert json.dumps(_strict({"p99": float("inf"), "x": [float("nan"), 1.5]}), allow_nan=False) == (
        '{"p99": "inf", "x": ["nan", 1.5]}'
    )


def results(out):
    return json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)


def test_policies_run_side_by_side_on_the_same_callers(tmp_path):
    out = tmp_path / "run"
    done = run(
        "+exp=overload", "workload.period_ms=80", "workload.deadline_ms=80", "workload.duration_s=5",
        "workload.mean_lifetime_s=1", "admission.control_ms=500", "admission.offered=[4,8,2]", "admission.n_star=4",
        "admission.cases=[{kv: window, policy: fixed}, {kv: window, policy: none}]", f"out.dir={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fixed, none = results(out)["points"]
    assert (fixed["policy"], none["policy"]) == ("fixed", "none")
    assert fixed["refused_sessions"] > 0 and none["refused_sessions"] == 0
    assert [s["of_n_star"] for s in none["steps"]] == [1, 2, 0.5]
    data = trace.read(out, "overload")
    callers = [set(data.of(p).frames.session_id) for p in data.points.point_id]
    assert callers[0] == callers[1]
    assert data.of("fixed-window256+4").decisions.num_active.max() == 4


def test_a_search_that_nothing_ends_stops_at_what_the_engine_may_hold(tmp_path):
    out = tmp_path / "run"
    done = run(
        "+exp=capacity", "workload.period_ms=400", "workload.deadline_ms=400", "workload.duration_s=2.4",
        "workload.sessions=[2,4]", "model.tokens_per_second=25", "engine.max_num_seqs=8", "capacity.warm_up_s=0.4",
        "capacity.repeats=1", "capacity.ceilings=1", "capacity.ceiling_frames=2", f"out.dir={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = results(out)["results"]
    assert result["n_star_repeats"][0] >= 4 and result["ceiling"] == [8]
    assert "N* is above engine.max_num_seqs" in (out / "run.log").read_text()


def test_cases_run_each_by_its_own_name(tmp_path):
    out = tmp_path / "run"
    done = run(
        "+exp=generality", "generality.only=[agent,qwen2_5_omni]", "generality.cases.agent.workload.sessions=[2]",
        "generality.cases.agent.workload.duration_s=4", "generality.cases.qwen2_5_omni.workload.sessions=[1]",
        "generality.cases.qwen2_5_omni.workload.duration_s=2", f"out.dir={out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    points = results(out)["points"]
    assert [(p["case"], p["kv"]) for p in points] == [
        (case, kv) for case in ("qwen2_5_omni", "agent") for kv in ("unbounded", "window64+4")
    ]
    data = trace.read(out, "generality")
    assert [p.workload for p in data.points.itertuples()] == ["voice", "voice", "agent", "agent"]
    assert set(data.of("agent-unbounded-n2").frames.tokens_in) == {64}


def test_a_case_that_is_none_is_refused(tmp_path):
    done = run("+exp=generality", "generality.only=[nobody]", f"out.dir={tmp_path / 'run'}")
    assert done.returncode == 2 and "generality.only=['nobody']: must name some of" in done.stderr


def test_help_lists_every_experiment():
    command = [sys.executable, "-m", "experiments.run", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert catalogue.listing().splitlines()[0].strip() in said
    assert all(f"+exp={entry.name} " in said for entry in catalogue.entries())
    assert "workload: agent, video, voice" in said


def test_a_saturation_run_that_is_late_from_the_start_still_has_its_table():
    result = {"t_collapse_s": 0.0}
    assert saturation._with_error(result, 41.9) == "41.90"
    assert saturation._with_error({"t_collapse_s": 40.0}, 42.0) == "42.00 (+5.0 %)"
