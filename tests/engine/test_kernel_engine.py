"""Our kernel under vLLM's own scheduler, blocks and model runner: exact to the token, where blocks come and go.

The CPU engine runs it in Triton's interpreter, since no GPU is needed to be right.
"""

from dataclasses import replace

import pytest
from recording import BLOCK_SIZE, MODEL, Engine, Session, first_layers
from reference import DenseLlama
from test_exact import TOLERANCE, difference, speech, starts

from metronome.window import Bound

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]

OPTIONS = {"window": 2 * BLOCK_SIZE, "sinks": 4, "positions": "anchor"}
# Blocks of one token round nothing: the very tokens that the kernel is to see.
TO_THE_TOKEN = Bound(block_size=1, **OPTIONS)


@pytest.fixture(scope="module")
async def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    model = str(first_layers(2, folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # read by the worker, as it imports triton
        engine = Engine(
            folder,
            OPTIONS,
            start_method="spawn",
            model=model,
            worker_cls="kernel_worker.KernelWorker",
            max_num_batched_tokens=48,
            num_gpu_blocks_override=24,
        )
    yield engine
    engine.llm.shutdown()


def token_by_token(session):
    """The session as the kernel sees it: each query has a window of its own, whatever chunk it came in."""
    longest = max(computed + num_tokens for computed, num_tokens in session.chunks)
    return replace(session, chunks=[(computed, 1) for computed in range(longest)])


async def test_kernel_in_the_engine_equals_the_reference(engine):
    """Chunks, decodes and streamed turns side by side, each past its window; chunks end within blocks."""
    sessions = {
        "long": Session([speech(1, 150)], tokens_out=8),
        "turns": Session([speech(seed, 25) for seed in range(10, 15)], tokens_out=4),
    }
    await engine.run(**sessions)
    model = DenseLlama(engine.folder)
    worst = {name: difference(token_by_token(one), model, TO_THE_TOKEN) for name, one in sessions.items()}
    print(f"\nmax |difference of log-probability| by session: {worst}")
    assert max(worst.values()) <= TOLERANCE
    assert all(starts(session) == 1 for session in sessions.values())
    # In whole blocks the bound holds a few tokens more, which a kernel that is exact to the token must not see.
    in_blocks = Bound(block_size=BLOCK_SIZE, **OPTIONS)
    assert difference(sessions["long"], model, in_blocks) > TOLERANCE
