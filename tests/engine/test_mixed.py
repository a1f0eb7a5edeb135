"""A model that mixes layers with and without a window of their own: only the latter are bounded."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import BLOCK_SIZE, Engine, Session
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from metronome.plugin import report
from metronome.window import Bound

OPTIONS = {"window": 2 * BLOCK_SIZE, "sinks": 4, "positions": "keep"}
BOUND = Bound(block_size=BLOCK_SIZE, **OPTIONS)
OWN_WINDOW = 40

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gemma")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """Random weights, large enough for attention to choose sharply."""
    config = Gemma3TextConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=1024,
        sliding_window=OWN_WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    made = Gemma3ForCausalLM(config).float().eval()
    made.save_pretrained(folder)
    return made


@pytest.fixture(scope="module")
async def engine(model: Any, folder: Path) -> AsyncIterator[Engine]:
    started = Engine(
        folder,
        OPTIONS,
        model=str(folder),
        skip_tokenizer_init=True,
        max_num_batched_tokens=48,
        num_gpu_blocks_override=60,
    )
    yield started
    started.llm.shutdown()


async def test_equals_transformers_under_the_same_masks(engine: Engine, model: Any) -> None:
    speech = random.Random(0)
    sessions = {
        "long": Session([speech.choices(range(5, 1000), k=200)], tokens_out=70),
        "short": Session([speech.choices(range(5, 1000), k=40)], tokens_out=120),
    }
    await engine.run(**sessions)
    worst = {name: difference(model, session, BOUND) for name, session in sessions.items()}
    print(f"\nmixed layers: max |difference of log-probability| by session: {worst}")
    assert max(worst.values()) <= 1e-5
    wider = replace(BOUND, window=BOUND.window + BLOCK_SIZE)
    assert difference(model, sessions["long"], wider) > 1e-3


async def test_counts_the_bounded_layers_only(engine: Engine) -> None:
    (worker,) = [each for each in report.read(engine.folder / "live") if each["role"] == "worker"]
    assert worker["num_layers"] == 2


@torch.inference_mode()
def difference(model: Any, session: Session, bound: Bound) -> float:
    """Largest over the tokens out, from one pass of the whole session under masks."""
    ids = torch.tensor([session.token_ids()])
    masks = {
        "full_attention": as_bias(bounded_mask(session, bound)),
        "sliding_attention": as_bias(window_mask(ids.shape[1], OWN_WINDOW)),
    }
    logprobs = model(ids, attention_mask=masks).logits[0].log_softmax(-1)
    before = torch.tensor(session.positions_out()) - 1
    got = logprobs[before].gather(1, torch.tensor(session.tokens)[:, None]).flatten()
    return float((got - torch.tensor(session.logprobs)).abs().max())


def window_mask(num_tokens: int, window: int) -> torch.Tensor:
    query, key = torch.arange(num_tokens)[:, None], torch.arange(num_tokens)
    return (key <= query) & (key > query - window)


def bounded_mask(session: Session, bound: Bound) -> torch.Tensor:
    """[T, T] which keys each query sees, given the engine's own chunks."""
    num_tokens = len(session.token_ids())
    seen = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    for computed, chunk in session.chunks:
        rows = slice(computed, computed + chunk)
        seen[rows, bound.kept_positions(computed)] = True
        seen[rows, rows] = window_mask(chunk, chunk)
    return seen


def as_bias(seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
