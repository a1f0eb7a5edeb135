"""CUDA backends, with CUDA graphs, against the dense reference. Not run where there is no GPU."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from recording import BLOCK_SIZE, MODEL, Engine, Session
from reference import DenseLlama
from test_exact import errors, mixed_sessions, nearly
from test_kernel_engine import token_by_token

from metronome.plugin import compat
from metronome.window import Bound

BOUND = Bound(window=2 * BLOCK_SIZE, sinks=4, positions="anchor", block_size=BLOCK_SIZE)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.engine,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("backend", compat.CUDA_BACKENDS)
async def test_follows_the_reference(backend: str, enforce_eager: bool, tmp_path: Path) -> None:
    """In bfloat16, so by the mean: rounding is spread, a key at a wrong position is not."""
    options = {"window": BOUND.window, "sinks": BOUND.sinks, "positions": BOUND.positions}
    engine = Engine(
        tmp_path,
        options,
        start_method="spawn",
        dtype="bfloat16",
        attention_backend=backend,
        enforce_eager=enforce_eager,
        max_num_batched_tokens=48,
    )
    sessions: dict[str, Session] = mixed_sessions()
    try:
        await engine.run(**sessions)
    finally:
        engine.llm.shutdown()
    model = DenseLlama(MODEL)
    for name, session in sessions.items():
        right = fmean(errors(session, model, BOUND))
        wrong = fmean(errors(session, model, nearly(BOUND)))
        print(f"{backend} {name}: mean |difference| {right}, with sinks left in place {wrong}")
        assert right < 0.05 < wrong


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
async def test_our_kernel_follows_the_reference(enforce_eager: bool, tmp_path: Path) -> None:
    """Exact to the token: against a reference in blocks of one."""
    options = {"window": BOUND.window, "sinks": BOUND.sinks, "positions": BOUND.positions, "kernel": "sink_window"}
    engine = Engine(
        tmp_path,
        options,
        start_method="spawn",
        dtype="bfloat16",
        enforce_eager=enforce_eager,
        max_num_batched_tokens=48,
    )
    sessions: dict[str, Session] = mixed_sessions()
    try:
        await engine.run(**sessions)
    finally:
        engine.llm.shutdown()
    model, to_the_token = DenseLlama(MODEL), replace(BOUND, block_size=1)
    for name, session in sessions.items():
        one = token_by_token(session)
        right, wrong = (fmean(errors(one, model, bound)) for bound in (to_the_token, nearly(to_the_token)))
        print(f"kernel {name}: mean |difference| {right}, with sinks left in place {wrong}")
        assert right < 0.05 < wrong


def test_kernels_run_on_the_card_and_agree_with_float64() -> None:
    """In a process of its own, where kernels are compiled: here they are the interpreter's."""
    command = [sys.executable, "kernels/bench.py", "--sessions", "32", "--windows", "512", "--out", "build/kernels"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
