"""What kills a real-time service, on the real engine, told apart from its traces alone. kv_full: test_smoke."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import ONE_PROCESS

from metronome import stats, trace

pytestmark = [pytest.mark.engine, pytest.mark.alone]
ROOT = Path(__file__).parent.parent.parent


def command(out, *overrides):
    return [sys.executable, "-m", "experiments.run", "name=causes", *overrides, f"out.dir={out}"]


def causes(out):
    """Point by point, from the trace."""
    manifest = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] == "complete"
    run = trace.read(out, "causes")
    return {p: stats.summarise(run.of(p)) for p in run.points.point_id}


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory):
    """Engines with room for all: sessions that meet max_model_len, more than two cores can serve (they keep the pace
    of about twenty), and an engine process that is killed while it serves."""
    out = tmp_path_factory.mktemp("runs") / "run"
    overrides = ["kv=unbounded", "workload.sessions=[2,120,3]", "workload.duration_s=8"]
    overrides += ["engine.max_model_len=128", "engine.num_blocks=1600"]
    env = os.environ | ONE_PROCESS
    with subprocess.Popen(command(out, *overrides), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE) as process:
        wait_for_last_point(out, process)
        kill_engine(process.pid)
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    return causes(out)


def wait_for_last_point(out, process):
    until = time.monotonic() + 240
    while time.monotonic() < until:
        assert process.poll() is None
        if (out / "frames").exists() and "unbounded-n3" in set(trace.read(out, "causes").frames.point_id):
            return
        time.sleep(0.2)
    pytest.fail("the last point never began")


def kill_engine(pid):
    (core,) = [p for p in psutil.Process(pid).children(recursive=True) if "EngineCore" in p.name()]
    core.kill()


def test_sessions_that_meet_max_model_len_are_max_len(unbounded):
    result = unbounded["unbounded-n2"]
    assert result.cause == "max_len"
    assert 3 <= result.t_collapse_s <= 5.5  # 128 tokens hold four frames of 28
    assert result.rho_max < 0.5


def test_more_than_the_cores_can_serve_is_compute(unbounded):
    result = unbounded["unbounded-n120"]
    print(result)
    assert result.cause == "compute" and result.t_collapse_s < 6
    assert result.rho_max < 0.9 and result.frames["ok"] + result.frames["late"] > 0


def test_an_engine_that_is_killed_is_engine_dead(unbounded):
    result = unbounded["unbounded-n3"]
    assert result.cause == "engine_dead"
    assert result.frames["engine_dead"] > 0
