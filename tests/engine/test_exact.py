"""The real engine against a dense float32 reference that attends to exactly the kept tokens."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
from recording import BLOCK_SIZE, MODEL, Engine, Session, first_layers
from reference import DenseLlama, replay

from metronome.plugin import report
from metronome.window import Bound

TOLERANCE = 1e-3  # of a log-probability; a key one position off costs 1e-1 and more

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs the model in {MODEL} (make setup)"),
]


def speech(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(range(100, 40_000), k=num_tokens)


def mixed_sessions() -> dict[str, Session]:
    """Prefills, decodes and streamed turns side by side, each far past its window."""
    return {
        "long": Session([speech(1, 230)], tokens_out=30),
        "short": Session([speech(2, 90)], tokens_out=60),
        "turns": Session([speech(seed, 25) for seed in range(10, 18)], tokens_out=6),
        "late": Session([speech(3, 119)], tokens_out=20),
    }


def growing_sessions() -> dict[str, Session]:
    """All admitted at once on few blocks, and growing."""
    return {f"s{seed}": Session([speech(seed, 20 + seed)], tokens_out=130) for seed in range(4)}


@dataclass(frozen=True)
class Case:
    options: dict[str, Any] | None
    engine: dict[str, Any] = field(default_factory=dict)
    sessions: Callable[[], dict[str, Session]] = mixed_sessions
    num_layers: int | None = 6

    @property
    def bound(self) -> Bound | None:
        return Bound(block_size=BLOCK_SIZE, **self.options) if self.options else None


CASES = {
    # Chunks that divide neither window nor block; a call of nine hours fits in 150 blocks.
    "anchored": Case(
        {"window": 2 * BLOCK_SIZE, "sinks": 4, "positions": "anchor"},
        {
            "max_num_batched_tokens": 48,
            "num_gpu_blocks_override": 150,
            "max_model_len": 1_000_000,
            "hf_overrides": {"max_position_embeddings": 1_000_000},
        },
        num_layers=None,
    ),
    "kept in place": Case(
        {"window": 2 * BLOCK_SIZE - 1, "sinks": 40, "positions": "keep"},
        {"max_num_batched_tokens": 48},
    ),
    "no sinks": Case({"window": BLOCK_SIZE + 1}, {"max_num_batched_tokens": 100}),
    # Less room than four sessions grow to: they are preempted, and blocks change hands.
    "crowded": Case(
        {"window": BLOCK_SIZE, "sinks": 2 * BLOCK_SIZE, "positions": "anchor"},
        {"max_num_batched_tokens": 100, "num_gpu_blocks_override": 13},
        growing_sessions,
    ),
    "stock": Case(None, {"max_num_batched_tokens": 100}),
}


class Running(NamedTuple):
    name: str
    case: Case
    engine: Engine
    model: DenseLlama


@pytest.fixture(scope="module", params=CASES)
async def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("engine")
    model = first_layers(case.num_layers, folder) if case.num_layers else MODEL
    engine = Engine(folder, case.options, model=str(model), **case.engine)
    yield Running(request.param, case, engine, DenseLlama(model))
    engine.llm.shutdown()


async def test_equals_the_reference(running: Running) -> None:
    name, case, engine, model = running
    sessions = case.sessions()
    await engine.run(**sessions)
    worst = {key: difference(session, model, case.bound) for key, session in sessions.items()}
    print(f"\n{name}: max |difference of log-probability| by session: {worst}")
    assert max(worst.values()) <= TOLERANCE
    was_preempted = any(starts(session) > 1 for session in sessions.values())
    assert was_preempted == (name == "crowded")
    if case.bound is not None:
        assert difference(next(iter(sessions.values())), model, nearly(case.bound)) > 10 * TOLERANCE


async def test_a_block_that_changes_hands_takes_no_sinks_along(running: Running) -> None:
    name, case, engine, model = running
    for number in range(2):
        session = Session([speech(20 + number, 170)], tokens_out=8)
        await engine.run(**{f"again{number}": session})
        assert difference(session, model, case.bound) <= TOLERANCE, f"{name}, session {number}"


async def test_says_where_it_is_live(running: Running) -> None:
    case, engine = running.case, running.engine
    reports = report.read(engine.folder / "live")
    if case.bound is None:
        assert reports == []
        return
    assert {each["role"] for each in reports} == {"worker", "scheduler"}
    for each in reports:
        found = {key: each[key] for key in ("window", "sinks", "positions", "block_size")}
        assert Bound(**found) == case.bound


def nearly(bound: Bound) -> Bound:
    """A bound that differs in one thing, which the reference must tell from the true one."""
    if bound.sinks == 0:
        return replace(bound, window=bound.window + BLOCK_SIZE)
    return replace(bound, positions="keep" if bound.positions == "anchor" else "anchor")


def starts(session: Session) -> int:
    return sum(computed == 0 for computed, _ in session.chunks)


def errors(session: Session, model: DenseLlama, bound: Bound | None) -> list[float]:
    """Per token out: how far its log-probability is from the reference's, and from its best."""
    predicted = replay(model, bound, session.token_ids(), session.chunks)
    out = zip(session.tokens, session.logprobs, session.positions_out(), strict=True)
    rows = [(predicted[position], token, logprob) for token, logprob, position in out]
    return [max(abs(row[t].item() - got), (row.max() - row[t]).item()) for row, t, got in rows]


def difference(session: Session, model: DenseLlama, bound: Bound | None) -> float:
    return max(errors(session, model, bound))
