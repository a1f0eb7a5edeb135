"""The real engine against a dense float32 reference that attends to exactly the kept tokens."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine import BLOCK_SIZE, MODEL, Engine, Session
from reference import DenseLlama, replay

from metronome.plugin import report
from metronome.window import Bound

TOLERANCE = 1e-3  # of a log-probability; a key one position off costs 1e-1 and more

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]


@dataclass(frozen=True)
class Case:
    options: dict[str, Any] | None
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> Bound | None:
        return Bound(block_size=BLOCK_SIZE, **self.options) if self.options else None


CASES = {
    # One block, chunks that divide nothing; a call of nine hours fits a pool of 150 blocks.
    "anchored": Case(
        {"window": 64, "sinks": 4, "positions": "anchor"},
        {
            "max_num_batched_tokens": 48,
            "num_gpu_blocks_override": 150,
            "max_model_len": 1_000_000,
            "hf_overrides": {"max_position_embeddings": 1_000_000},
        },
    ),
    "kept in place": Case(
        {"window": 2 * BLOCK_SIZE - 1, "sinks": 40, "positions": "keep"},
        {"max_num_batched_tokens": 48},
    ),
    "no sinks": Case({"window": BLOCK_SIZE + 1, "sinks": 0}, {"max_num_batched_tokens": 100}),
    # Less room than four sessions need, so that they are preempted and blocks change hands.
    "crowded": Case(
        {"window": BLOCK_SIZE, "sinks": 2 * BLOCK_SIZE, "positions": "anchor"},
        {"max_num_batched_tokens": 100, "num_gpu_blocks_override": 15},
    ),
    "stock": Case(None, {"max_num_batched_tokens": 100}),
}


@pytest.fixture(scope="module")
def model() -> DenseLlama:
    return DenseLlama(MODEL)


@pytest.fixture(scope="module", params=CASES)
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Case, Engine]]:
    case = CASES[request.param]
    engine = Engine(tmp_path_factory.mktemp("engine"), case.options, **case.engine)
    yield request.param, case, engine
    engine.llm.shutdown()


def speech(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(range(100, 40_000), k=num_tokens)


async def test_equals_the_reference(running: tuple[str, Case, Engine], model: DenseLlama) -> None:
    name, case, engine = running
    sessions = {
        "long": Session([speech(1, 230)], tokens_out=40),
        "short": Session([speech(2, 30)], tokens_out=100),
        "turns": Session([speech(seed, 25) for seed in range(10, 18)], tokens_out=6),
        "late": Session([speech(3, 119)], tokens_out=20),
    }
    await engine.run(**sessions)
    worst = {key: difference(session, model, case.bound) for key, session in sessions.items()}
    print(f"\n{name}: max |difference of log-probability| by session: {worst}")
    assert max(worst.values()) <= TOLERANCE
    if name == "crowded":
        assert any(starts(session) > 1 for session in sessions.values()), "nothing was preempted"


async def test_a_block_that_changes_hands_takes_no_sinks_along(
    running: tuple[str, Case, Engine], model: DenseLlama
) -> None:
    name, case, engine = running
    for number in range(3):
        session = Session([speech(20 + number, 97)], tokens_out=30)
        await engine.run(**{f"again{number}": session})
        assert difference(session, model, case.bound) <= TOLERANCE, f"{name}, session {number}"


async def test_says_where_it_is_live(running: tuple[str, Case, Engine]) -> None:
    _, case, engine = running
    reports = report.read(engine.folder / "live")
    if case.bound is None:
        assert reports == []
        return
    assert {each["role"] for each in reports} == {"worker", "scheduler"}
    for each in reports:
        found = {key: each[key] for key in ("window", "sinks", "positions", "block_size")}
        assert Bound(**found) == case.bound


def starts(session: Session) -> int:
    return sum(computed == 0 for computed, _ in session.chunks)


def difference(session: Session, model: DenseLlama, bound: Bound | None) -> float:
    """Largest difference over the tokens out, which must be the reference's own choice too."""
    predicted = replay(model, bound, session.token_ids(), session.chunks)
    worst = 0.0
    for token, logprob, position in zip(session.tokens, session.logprobs, session.positions_out(), strict=True):
        row = predicted[position]
        worst = max(worst, abs(row[token].item() - logprob), (row.max() - row[token]).item())
    return worst
