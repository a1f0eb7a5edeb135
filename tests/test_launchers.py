"""Multiruns: each launcher's config composes, and the local one runs its jobs in turn and tells of failures."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import machine

ROOT = Path(__file__).parents[1]
CONF = ROOT / "experiments" / "conf"
LAUNCHERS = sorted(path.stem for path in (CONF / "hydra" / "launcher").glob("*.yaml"))
QUICK = ("+exp=smoke", "target=none", "kv=window", "workload.duration_s=4", "workload.sessions=[1]")


def multirun(cwd, *overrides):
    command = [sys.executable, "-m", "experiments.run", "-m", *QUICK, *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def checkout(tmp_path):
    """A folder to run in, with the speech."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    return tmp_path


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_composes(name):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("run", overrides=[f"hydra/launcher={name}", "+exp=smoke"], return_hydra_config=True)
    assert "submitit" in config.hydra.launcher._target_


def test_the_local_launcher_runs_every_job_in_a_directory_of_its_own(checkout):
    done = multirun(checkout, "model=smollm2,tiny", "hydra/launcher=local")
    assert done.returncode == 0, done.stderr
    manifests = [json.loads(path.read_text()) for path in sorted(checkout.glob("runs/smoke/*/manifest.json"))]
    assert {m["config"]["model"]["name"] for m in manifests} == {"smollm2", "tiny"}
    assert {m["status"] for m in manifests} == {"complete"}
    assert sorted(path.name for path in checkout.iterdir()) == ["data", "runs"]  # nothing beside the runs


def test_a_job_that_fails_fails_the_multirun(checkout):
    done = multirun(checkout, "workload.sessions=[1],[0]", "hydra/launcher=local")
    assert done.returncode != 0
    assert "workload.sessions" in done.stderr + done.stdout


def test_runs_take_turns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    order = []

    def second():
        with machine.alone():
            order.append("second")

    with machine.alone():
        other = threading.Thread(target=second)
        other.start()
        other.join(0.5)
        assert other.is_alive()
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]
    assert "waiting for another run" in capsys.readouterr().err


def test_gpus_that_are_set_apart_may_measure_side_by_side(monkeypatch):
    paths = set()
    for devices in ("0", "1", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        paths.add(machine.lock_path())
    assert len(paths) == 3
