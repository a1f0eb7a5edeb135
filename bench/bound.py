"""What the bound costs and saves, as ratios of frame latencies measured in one run on the real engine.

    python bench/bound.py [--rounds 7] [--sessions 2] [--history 4096] [--frames 40]

Each round starts every variant once, in an order that alternates, so that a drift of the machine meets all alike.
Sessions first hear `history` tokens, or a window twice over where there is one; then they speak in step, 25 tokens in
and 4 out per frame, and a frame's latency is that of the slowest. Nothing else may run meanwhile.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np

from metronome.backends.vllm_engine import EngineOptions
from metronome.backends.vllm_stream import VllmStreamBackend
from metronome.models import ModelProfile

WINDOW, SINKS, BLOCK = 256, 4, 32
TOKENS_IN, TOKENS_OUT, LAYERS = 25, 4, 30
VARIANTS = ("anchor", "keep", "own window", "unbounded")


def profile(variant: str) -> ModelProfile:
    own = {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * LAYERS}
    return ModelProfile(
        name="smollm2",
        checkpoint=".cache/smollm2",
        weights="real",
        tokens_per_second=TOKENS_IN,
        tokens_out=TOKENS_OUT,
        kv_bytes_per_token=23040,
        hf_overrides=own if variant == "own window" else {},
    )


def options(variant: str, args: argparse.Namespace) -> EngineOptions:
    total = args.history + (args.frames + 1) * (TOKENS_IN + TOKENS_OUT)
    bound = {"window": WINDOW, "sinks": SINKS, "positions": variant} if variant in ("anchor", "keep") else None
    return EngineOptions(
        num_blocks=args.sessions * (total // BLOCK + 2) + 1,
        block_size=BLOCK,
        max_model_len=total + BLOCK,
        max_num_seqs=args.sessions + 1,
        max_num_batched_tokens=256,
        bound=bound,
    )


class Speaker:
    """One session that says its next frame when told to."""

    def __init__(self, backend: VllmStreamBackend, name: str) -> None:
        self._inbox: asyncio.Queue[list[int]] = asyncio.Queue()
        self._outputs = backend.converse(name, self._speak())

    async def _speak(self) -> AsyncIterator[Sequence[int]]:
        while True:
            yield await self._inbox.get()

    async def say(self, ids: list[int]) -> None:
        """Returns when the frame is answered."""
        self._inbox.put_nowait(ids)
        while not (await anext(self._outputs)).turn_done:
            pass

    async def hang_up(self) -> None:
        await self._outputs.aclose()


async def measure(variant: str, args: argparse.Namespace) -> list[float]:
    """Latency in ms of each frame, all sessions in step."""
    rng = np.random.default_rng(0)
    history = args.history if variant == "unbounded" else 2 * WINDOW
    backend = VllmStreamBackend(profile(variant), options(variant, args))
    with quiet():
        await backend.start()
    try:
        speakers = [Speaker(backend, f"{variant}-{i}") for i in range(args.sessions)]
        for speaker in speakers:
            await speaker.say(rng.integers(100, 40_000, history).tolist())
        latencies = []
        for _ in range(args.frames):
            frames = rng.integers(100, 40_000, (args.sessions, TOKENS_IN)).tolist()
            start = time.perf_counter()
            await asyncio.gather(*(s.say(ids) for s, ids in zip(speakers, frames, strict=True)))
            latencies.append(1e3 * (time.perf_counter() - start))
        for speaker in speakers:
            await speaker.hang_up()
    finally:
        await backend.stop()
    return latencies


@contextlib.contextmanager
def quiet():
    """Engine processes inherit silence."""
    kept = [os.dup(fd) for fd in (1, 2)]
    with Path(os.devnull).open("wb") as null:
        for fd in (1, 2):
            os.dup2(null.fileno(), fd)
    try:
        yield
    finally:
        for fd, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, fd)
            os.close(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--history", type=int, default=4096)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--json", type=Path, help="also write every latency here")
    args = parser.parse_args()
    rounds: list[dict[str, list[float]]] = []
    for i in range(args.rounds):
        order = VARIANTS if i % 2 == 0 else VARIANTS[::-1]
        rounds.append({variant: asyncio.run(measure(variant, args)) for variant in order})
        medians = ", ".join(f"{v} {np.median(rounds[-1][v]):.1f}" for v in VARIANTS)
        print(f"round {i + 1}/{args.rounds}, median frame latency in ms: {medians}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rounds))
    report(rounds)


def report(rounds: list[dict[str, list[float]]]) -> None:
    """Medians over rounds of each round's ratio of medians, with the smallest and the largest."""
    medians = {variant: np.array([np.median(r[variant]) for r in rounds]) for variant in VARIANTS}
    ratios = {
        "bound / vLLM's own sliding window": medians["anchor"] / medians["own window"],
        "bound / unbounded": medians["anchor"] / medians["unbounded"],
        "share of a frame that anchored sinks cost": 1 - medians["keep"] / medians["anchor"],
    }
    for name, values in ratios.items():
        print(f"{name}: {np.median(values):.3f} (of {len(values)} rounds {values.min():.3f} to {values.max():.3f})")


if __name__ == "__main__":
    sys.exit(main())
