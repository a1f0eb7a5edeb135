"""A refusal on the real engine: its reason is among the last things that the user reads."""

import os
import subprocess
import sys

import pytest
from command import ONE_PROCESS
from recording import MODEL

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]


def test_the_user_reads_the_reason() -> None:
    program = (
        "from vllm.engine.arg_utils import AsyncEngineArgs\n"
        "from vllm.v1.engine.async_llm import AsyncLLM\n"
        f"AsyncLLM.from_engine_args(AsyncEngineArgs({str(MODEL)!r}, block_size=32, enforce_eager=True,\n"
        "    additional_config={'metronome': {'window': 64}}, enable_prefix_caching=True))\n"
    )
    script, env = [sys.executable, "-c", program], os.environ | ONE_PROCESS
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert (
        "ValueError: additional_config.metronome: a prefix-cache hit would bring the window "
        "without its sinks; set enable_prefix_caching=False (--no-enable-prefix-caching)"
    ) in done.stdout + done.stderr
