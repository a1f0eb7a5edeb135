"""Moshi in full duplex (moshi_loop) in a process of its own: the reference whose bounded cache never pages."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import __version__ as transformers_version

from metronome.backends.base import EngineDied, EngineInfo, Turn
from metronome.backends.listening import listening
from metronome.backends.moshi_loop import Spoken
from metronome.backends.moshi_process import Facts, attend, forget, hear, open_model
from metronome.frames import PoolSample, TurnOutput
from metronome.window import blocks_for

_WARM_UP_FRAMES = 2

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    """A session as the load generator sees it."""

    has_slot: bool = False
    busy: bool = False  # a frame of it is with the engine's process
    num_kept: int = 0


class MoshiDuplexBackend:
    """Moshi in one process of its own that takes the sessions' frames first come, first served.

    A turn is audio: float32 samples of one channel at the model's rate, whole Mimi frames (1,920 samples, 80 ms); each
    frame is answered with one text token and a frame of speech. `converse` gives the tokens, `speak` also the sound.

    Of the cache the temporal transformer's keys and values are counted, in blocks of `block_size` positions. A session
    has a slot from its first turn to its end, and a slot claims the whole window, blocks_for(sliding_window): that is
    `blocks_total`, and one session more waits until a slot is free. Nothing of it is allocated ahead, as LMGen's rings
    would be: `blocks_used` are the real lengths, which grow by a position per frame to sliding_window - 1 and stay
    there, so no session ever takes from another and none is preempted. Mimi's caches, bounded too, are not counted.

    A session's samples are drawn from a generator seeded by `seed` and its session_id: they are the same whoever else
    is served.
    """

    def __init__(self, checkpoint: str, *, num_slots: int, block_size: int = 32, seed: int = 0) -> None:
        if num_slots < 1 or block_size < 1:
            raise ValueError(f"num_slots={num_slots}, block_size={block_size}: must be 1 or more")
        self._checkpoint = checkpoint
        self._num_slots = num_slots
        self._block_size = block_size
        self._seed = seed
        self._pool: ProcessPoolExecutor | None = None
        self._facts: Facts | None = None
        self._slots = asyncio.Semaphore(num_slots)
        self._keys = itertools.count()
        self._lines: dict[int, _Line] = {}
        self._num_tokens = 0

    @property
    def info(self) -> EngineInfo:
        facts = self._known()
        return EngineInfo(
            name="transformers",
            num_blocks=self._num_slots * blocks_for(facts.window, self._block_size),
            block_size=self._block_size,
            max_model_len=None,
            dtype=facts.dtype,
            block_bytes=facts.position_bytes * self._block_size,
            versions={"torch": torch.__version__, "transformers": transformers_version},
        )

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._known().pid

    async def start(self) -> None:
        """Raises OSError or ValueError where the checkpoint cannot be loaded."""
        assert self._pool is None, "stop() comes first"
        if not (Path(self._checkpoint) / "config.json").is_file():
            raise FileNotFoundError(
                f"{self._checkpoint}: no Moshi there; save one with MoshiForConditionalGeneration.save_pretrained"
            )
        self._slots = asyncio.Semaphore(self._num_slots)
        self._lines.clear()
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=attend)
        try:
            self._facts = await self._call(open_model, self._checkpoint)
            await self._warm_up(self._facts)
        except BaseException:
            await self.stop()
            raise
        self._num_tokens = 0

    async def _warm_up(self, facts: Facts) -> None:
        async def turns() -> AsyncIterator[Turn]:
            yield np.zeros(_WARM_UP_FRAMES * facts.frame_size, np.float32)

        async for _ in self.converse("warm-up", turns()):
            pass
        if not await self.drained(timeout_s=10):
            raise RuntimeError("the engine kept the cache of its first session")

    async def stop(self) -> None:
        if self._pool:
            pool, self._pool = self._pool, None
            await asyncio.to_thread(pool.shutdown)

    async def converse(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[TurnOutput, None]:
        """As in the protocol; one output per Mimi frame.

        Raises ValueError for a turn that is not whole frames of audio; other sessions go on.
        """
        async with aclosing(self.speak(session_id, turns)) as replies:
            async for spoken in replies:
                yield TurnOutput(
                    num_tokens=1,
                    num_sampled=1,
                    turn_done=spoken.turn_done,
                    token_ids=(spoken.text_token,),
                    num_kept=spoken.num_kept,
                )

    async def speak(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[Spoken, None]:
        """As converse(), with all that was said."""
        key, line, seed = next(self._keys), _Line(), self._seed_of(session_id)
        try:
            async with listening(turns) as heard:
                async for turn in heard:
                    frames = self._cut(turn)
                    if key not in self._lines:
                        self._lines[key] = line
                        await self._slots.acquire()
                        line.has_slot = True
                    for left, frame in zip(reversed(range(len(frames))), frames, strict=True):
                        line.busy = True
                        spoken = await self._call(hear, key, seed, frame)
                        line.busy, line.num_kept = False, spoken.num_kept
                        self._num_tokens += 1
                        yield replace(spoken, turn_done=not left)
        finally:
            self._hang_up(key, line)

    def _seed_of(self, session_id: str) -> int:
        return int.from_bytes(blake2b(f"{self._seed}:{session_id}".encode(), digest_size=7).digest())

    def _cut(self, turn: Turn) -> NDArray[np.float32]:
        """A turn as its Mimi frames."""
        facts = self._known()
        name, size = f"{facts.model_type} ({Path(self._checkpoint).name})", facts.frame_size
        if not isinstance(turn, np.ndarray):
            raise ValueError(f"{name}: a turn is audio, not {len(turn)} token ids; send float32 samples")
        if turn.ndim != 1 or turn.dtype != np.float32 or not np.isfinite(turn).all():
            raise ValueError(
                f"{name}: a turn is finite float32 samples of one channel, not {turn.dtype} of shape {turn.shape}; "
                "convert it"
            )
        if len(turn) == 0 or len(turn) % size:
            frame_ms = 1000 * size / facts.sample_rate_hz
            raise ValueError(
                f"{name}: a turn of {len(turn)} samples is not whole frames of {size} samples ({frame_ms:g} ms at "
                f"{facts.sample_rate_hz} Hz); set workload.period_ms to a multiple of {frame_ms:g}, or pad the turn to "
                f"{max(1, -(-len(turn) // size)) * size} samples"
            )
        return turn.reshape(-1, size)

    def _hang_up(self, key: int, line: _Line) -> None:
        """The slot is free once the engine has dropped the cache, which it does after a frame it is busy with."""
        if not line.has_slot:
            self._lines.pop(key, None)
            return
        loop = asyncio.get_running_loop()
        try:
            assert self._pool is not None
            forgotten = self._pool.submit(forget, key)
        except (RuntimeError, AssertionError):  # the engine is gone, and all caches with it
            self._free(key)
            return

        def free(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the slot
                loop.call_soon_threadsafe(self._free, key)

        forgotten.add_done_callback(free)

    def _free(self, key: int) -> None:
        if self._lines.pop(key, None):
            self._slots.release()

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert self._pool is not None and not kwargs, "start() comes first"
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
        except BrokenProcessPool as error:
            raise EngineDied("Moshi's process is gone") from error

    def _known(self) -> Facts:
        assert self._facts is not None, "start() comes first"
        return self._facts

    def sample(self, t_ns: int) -> PoolSample:
        """Running: the session whose frame is computed. Deferred: those with a slot and no frame to answer."""
        lines = self._lines.values()
        running = min(1, sum(line.busy for line in lines))
        return PoolSample(
            t_ns=t_ns,
            blocks_used=sum(blocks_for(line.num_kept, self._block_size) for line in lines),
            blocks_total=self.info.num_blocks,
            running=running,
            waiting=len(lines) - running,
            deferred=sum(line.has_slot and not line.busy for line in lines),
            preemptions=0,
            tokens_out=self._num_tokens,
            stats_age_ns=0,
        )

    async def drained(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while self._lines and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return not self._lines
