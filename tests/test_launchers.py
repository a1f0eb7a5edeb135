"""Multiruns: each launcher's config composes, and the local one runs its jobs in turn and tells of failures."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import machine, schema
from experiments.run import make_run_dir

ROOT = Path(__file__).parents[1]
CONF = ROOT / "experiments" / "conf"
LAUNCHERS = sorted(path.stem for path in (CONF / "hydra" / "launcher").glob("*.yaml"))
QUICK = ("+exp=smoke", "target=none", "kv=window", "workload.duration_s=4", "workload.sessions=[1]")


def command(*overrides, flags=()):
    return [sys.executable, "-m", "experiments.run", *flags, *QUICK, *overrides]


def multirun(cwd, *overrides, **environment):
    env = os.environ | environment
    return subprocess.run(
        command(*overrides, flags=["-m"]), cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def composed(launcher):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("run", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True).hydra


def manifests(cwd):
    """Of all runs, in the order of their start."""
    return [json.loads(path.read_text()) for path in sorted(cwd.glob("runs/smoke/*/manifest.json"))]


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
    first, second = manifests(checkout)
    assert [m["config"]["model"]["name"] for m in (first, second)] == ["smollm2", "tiny"]
    assert {m["status"] for m in (first, second)} == {"complete"}
    assert second["started_at"] >= first["ended_at"]
    assert "#1 : +exp=smoke" in done.stdout and "model=tiny" in done.stdout  # what runs now is said
    assert sorted(path.name for path in checkout.iterdir()) == ["data", "runs"]  # nothing beside the runs


@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_a_job_that_fails_ends_the_multirun_and_says_why(launcher, checkout):
    done = multirun(checkout, "workload.sessions=[0],[1]", f"hydra/launcher={launcher}")
    assert done.returncode == 1
    assert "refused: workload.sessions has 0" in done.stderr and "Traceback" not in done.stderr
    assert not manifests(checkout)  # nothing is left running behind the command's back


def test_ctrl_c_reaches_the_job(checkout):
    args = command("model=smollm2,tiny", "workload.duration_s=60", "hydra/launcher=local", flags=["-m"])
    child = subprocess.Popen(args, cwd=checkout, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while not list(checkout.glob("runs/smoke/*/frames/*.parquet")) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    assert child.wait(timeout=30) == 130
    while manifests(checkout)[0]["status"] == "running" and time.monotonic() < until:
        time.sleep(0.1)
    assert [m["status"] for m in manifests(checkout)] == ["interrupted"]


def test_a_launcher_without_a_multirun_is_refused(checkout):
    done = subprocess.run(
        command("hydra/launcher=local"), cwd=checkout, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "refused: hydra/launcher=local: launches the jobs of a multirun; add -m\n"


def test_jobs_may_be_given_directories_by_their_number(checkout):
    done = multirun(checkout, "model=smollm2,tiny", "out.dir=mine/${hydra:job.num}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((checkout / "mine" / i / "manifest.json").read_text()) for i in "01"]
    assert [m["config"]["model"]["name"] for m in found] == ["smollm2", "tiny"]


def test_slurm_is_asked_for_what_the_config_says(checkout):
    """A cluster that takes no job: what it was asked is kept, and its refusal is the multirun's."""
    commands = checkout / "bin"
    commands.mkdir()
    refusal = f"cp $1 {checkout}/asked.sh; echo no such partition >&2; exit 1"
    for name, script in (("srun", "exit 0"), ("sbatch", refusal)):
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    overrides = ("model=smollm2,tiny", "hydra/launcher=slurm", "hydra.launcher.partition=mine")
    done = multirun(checkout, *overrides, PATH=f"{commands}:{os.environ['PATH']}")
    assert done.returncode == 1 and "no such partition" in done.stderr
    asked = (checkout / "asked.sh").read_text()
    for option in ("partition=mine", "gpus-per-node=1", "cpus-per-task=16", "array=0-1%2", "time=240"):
        assert f"#SBATCH --{option}\n" in asked


@pytest.mark.parametrize(("launcher", "at_once"), [("basic", 1), ("submitit_local", 1), ("local", 1), ("slurm", 8)])
def test_only_a_cluster_runs_jobs_side_by_side(launcher, at_once):
    assert composed(launcher).sweeper.max_batch_size == at_once


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_sees_a_gpu_where_there_is_one(launcher):
    """With none asked for, submitit hides them all, and a CUDA build of vLLM cannot start."""
    assert composed(launcher).launcher.gpus_per_node == 1


def test_runs_that_start_in_the_same_second_share_no_directory(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        run = schema.load(compose("run", overrides=list(QUICK)))
    with ThreadPoolExecutor(16) as pool:
        directories = list(pool.map(lambda _: make_run_dir(run), range(32)))
    assert len(set(directories)) == 32 and all(d.is_dir() for d in directories)


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


@pytest.mark.parametrize(("gpu", "num_locks"), [(True, 3), (False, 1)])
def test_gpus_that_are_set_apart_may_measure_side_by_side(gpu, num_locks, monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)
    paths = set()
    for devices in ("0", "1", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        paths.add(machine.lock_path())
    assert len(paths) == num_locks
