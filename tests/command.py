"""The command that runs an experiment, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_experiment(out, *overrides):
    """Its manifest and what it printed; it must end well."""
    command = [sys.executable, "-m", "experiments.run", *overrides, f"out.dir={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    manifest = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert manifest["status"] == "complete"
    return manifest, done.stdout
