"""A thousand slides, far past the trained context: no drift, on the real engine against the dense reference."""

from collections.abc import AsyncIterator

import pytest
from recording import BLOCK_SIZE, MODEL, Engine, Session, first_layers
from reference import DenseLlama
from test_exact import TOLERANCE, difference, speech

from metronome.window import Bound

NUM_LAYERS, TRAINED_LEN = 2, 8192  # the bound works layer by layer: two are as good as thirty, and quicker to check
OPTIONS = {"window": BLOCK_SIZE, "sinks": 4, "positions": "anchor"}
NUM_TURNS, TURN_TOKENS = 1020, BLOCK_SIZE + 1  # each turn slides the window by a block, some by two
MAX_LEN = NUM_TURNS * TURN_TOKENS + BLOCK_SIZE

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Engine, DenseLlama]]:
    folder = tmp_path_factory.mktemp("engine")
    model = first_layers(NUM_LAYERS, folder)
    overrides = {"max_position_embeddings": MAX_LEN}
    engine = Engine(
        folder,
        OPTIONS,
        model=str(model),
        hf_overrides=overrides,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=32,
    )
    yield engine, DenseLlama(model)
    engine.llm.shutdown()


async def test_a_thousand_slides_past_the_trained_context_drift_nowhere(running: tuple[Engine, DenseLlama]) -> None:
    engine, model = running
    bound = Bound(block_size=BLOCK_SIZE, **OPTIONS)
    session = Session([speech(seed, TURN_TOKENS) for seed in range(NUM_TURNS)], tokens_out=1)
    await engine.run(long=session)
    computed = [start for start, _ in session.chunks]
    slides = len({bound.gap_blocks(start) for start in computed}) - 1
    worst = difference(session, model, bound)
    print(f"\n{slides} slides over {computed[-1]} tokens: max |difference of log-probability| {worst:.2e}")
    assert slides > 1000 and computed[-1] > 4 * TRAINED_LEN
    assert worst <= TOLERANCE
