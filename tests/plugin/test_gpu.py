"""CUDA backends, with CUDA graphs, against the dense reference. Not run where there is no GPU."""

from pathlib import Path
from statistics import fmean

import pytest
import torch
from engine import BLOCK_SIZE, MODEL, Engine, Session
from reference import DenseLlama
from test_exact import errors, mixed_sessions, nearly

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
