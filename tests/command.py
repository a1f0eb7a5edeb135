"""The command that runs an experiment, as a person types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


# The worker within the engine's process, as on one GPU: a third less to start. On a CPU vLLM wants two, so as to place
# a service's threads.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def run_experiment(out, *overrides, env=ONE_PROCESS):
    """Its manifest and what it printed; it must end well."""
    command = [sys.executable, "-m", "experiments.run", *overrides, f"out.dir={out}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    manifest = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] == "complete"
    return manifest, done.stdout
