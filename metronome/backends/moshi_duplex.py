"""Moshi in full duplex on transformers: it hears and speaks in every frame, and its own bounded cache never pages.

What a position holds follows MoshiForConditionalGeneration.generate(), which is offline, and agrees with kyutai's own
LMGen. Position 0 holds only beginning-of-stream tokens. Position p > 0 holds the text token and the own semantic code
sampled at p - 1, the own acoustic codes sampled there (at p = 1 still beginning-of-stream), the user's semantic code of
frame p - 1 and the user's acoustic codes of frame p - 2: the acoustic delay. So frame k of the user is heard at
position k + 1, and with what is sampled there frame k of the own speech is complete. The first frame of a session costs
a position more.

As published: that order, the depth decoder's 8 codes per position with a cache of their own, rotary positions that grow
without end, and LMGen's sampling (text: temperature 0.7, top 25; audio: 0.8, top 250). Mimi streams on both sides:
transformers keeps only its transformer's state between calls of decode(), so the convolutions around it are driven
here. Not as published: LMGen runs all sessions as one lock-step batch over ring buffers allocated at its start, here
sessions take turns and a cache is concatenated anew for each position; weights and cache have the checkpoint's dtype;
a text token is handed out when it is sampled, where LMGen keeps it for the frame of speech it goes with; CUDA graphs,
the text tokenizer and the network server are left out. It runs on the CPU only.
"""

import asyncio
import itertools
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, MoshiForConditionalGeneration
from transformers import __version__ as transformers_version
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d, MimiResnetBlock
from transformers.utils import logging as transformers_logging

from metronome.backends.base import EngineDied, EngineInfo, Turn
from metronome.frames import PoolSample, TurnOutput
from metronome.window import blocks_for

_NICE = 10
_WARM_UP_FRAMES = 2
_TEXT_SAMPLING = (0.7, 25)  # temperature, top k
_AUDIO_SAMPLING = (0.8, 250)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What the model answered to one Mimi frame."""

    text_token: int
    codes: tuple[int, ...]  # of its own speech in this frame, semantic code first
    speech: NDArray[np.float32]  # these codes as sound: as many samples as the frame that was heard
    num_kept: int  # positions in the temporal transformer's cache
    turn_done: bool = True


class Dialogue:
    """One session's state in the model. generator: where it draws its samples from; None: it takes the likeliest."""

    def __init__(self, model: Any, generator: torch.Generator | None) -> None:
        self._model, self._generator = model, generator
        config = model.config
        self._past = DynamicCache(config=model.decoder.config)
        self._padding: Any = None
        self._ear_past: Any = None
        self._mouth = _Mouth(model.audio_encoder)
        self._silence = torch.full((1, config.num_codebooks, 1), config.audio_vocab_size)  # beginning of stream
        self._text = torch.full((1, 1), config.vocab_size)
        self._own = self._silence
        self._delayed = self._silence[:, 1:]

    @property
    def num_kept(self) -> int:
        layer = self._past.layers[0]
        return int(layer.keys.shape[-2]) if layer.is_initialized else 0

    def converse(self, samples: NDArray[np.float32]) -> Spoken:
        with torch.inference_mode():
            text, codes = self.answer(self.hear(torch.from_numpy(samples)[None, None]))
            speech = self._mouth.say(codes)
        return Spoken(
            text_token=text,
            codes=tuple(codes.flatten().tolist()),
            speech=speech.flatten().float().numpy(),
            num_kept=self.num_kept,
        )

    def hear(self, samples: torch.Tensor) -> torch.Tensor:
        """The codes of the next frames of the user's audio; shapes (1, 1, samples) and (1, codebooks, frames)."""
        heard = self._model.audio_encoder.encode(
            samples.to(self._model.dtype),
            num_quantizers=self._model.config.num_codebooks,
            encoder_past_key_values=self._ear_past,
            padding_cache=self._padding,
            use_streaming=True,
            return_dict=True,
        )
        self._ear_past, self._padding = heard.encoder_past_key_values, heard.padding_cache
        codes: torch.Tensor = heard.audio_codes
        return codes

    def answer(self, codes: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The text token and the own codes that answer one frame of the user's codes."""
        if not self._past.get_seq_length():
            self._advance(self._silence)
            self._own = torch.cat([self._own[:, :1], self._silence[:, 1:]], dim=1)
        user = torch.cat([codes[:, :1], self._delayed], dim=1)
        self._delayed = codes[:, 1:]
        semantic = self._own[:, :1]
        self._advance(user)
        return int(self._text), torch.cat([semantic, self._own[:, 1:]], dim=1)

    def _advance(self, user: torch.Tensor) -> None:
        """One position of the temporal transformer; samples its text token and its codes."""
        model = self._model
        embedded = model.decoder.model.embed_tokens(self._text)
        for level, embed in zip(torch.cat([self._own, user], dim=1).unbind(1), model.embed_tokens, strict=True):
            embedded = embedded + embed(level)
        out = model.decoder(inputs_embeds=embedded, past_key_values=self._past, use_cache=True, return_dict=True)
        self._text = self._pick(out.logits[:, -1], *_TEXT_SAMPLING)
        past = DynamicCache(config=model.depth_decoder.config)
        codes = [self._text]
        for _ in range(model.config.num_codebooks):
            depth = model.depth_decoder(
                input_ids=codes[-1],
                last_hidden_state=out.last_hidden_state[:, -1:],
                past_key_values=past,
                use_cache=True,
                return_dict=True,
            )
            codes.append(self._pick(depth.logits[:, -1], *_AUDIO_SAMPLING))
        self._own = torch.stack(codes[1:], dim=1)

    def _pick(self, logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
        if self._generator is None:
            return logits.argmax(-1, keepdim=True)
        top, ids = logits.float().topk(min(top_k, logits.shape[-1]))
        drawn = torch.multinomial(torch.softmax(top / temperature, -1), 1, generator=self._generator)
        return ids.gather(-1, drawn)


class _Mouth:
    """Mimi's decoder, frame by frame, with the same sound as decoding all frames at once."""

    def __init__(self, mimi: Any) -> None:
        self._mimi = mimi
        self._past = DynamicCache(config=mimi.config)
        self._tails: dict[Any, torch.Tensor] = {}  # per convolution: the end of its input so far

    def say(self, codes: torch.Tensor) -> torch.Tensor:
        mimi = self._mimi
        hidden = self._run(mimi.upsample, mimi.quantizer.decode(codes))
        out = mimi.decoder_transformer(
            hidden.transpose(1, 2), past_key_values=self._past, use_cache=True, return_dict=True
        )
        hidden = out.last_hidden_state.transpose(1, 2)
        for layer in mimi.decoder.layers:
            hidden = self._run(layer, hidden)
        return hidden

    def _run(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, MimiResnetBlock):
            inner = x
            for part in layer.block:
                inner = self._run(part, inner)
            return self._run(layer.shortcut, x) + inner
        if isinstance(layer, MimiConvTranspose1d):
            # Two strides wide (see _load): what the last input before adds is all that is missing of these outputs.
            later: torch.Tensor = layer(self._with_tail(layer, x, 1))
            return later[..., layer.conv.stride[0] :]
        if isinstance(layer, MimiConv1d):
            convolved: torch.Tensor = layer.conv(self._with_tail(layer, x, _reach(layer)))
            return convolved
        result: torch.Tensor = layer(x)
        return result

    def _with_tail(self, layer: Any, x: torch.Tensor, size: int) -> torch.Tensor:
        if not size:
            return x
        tail = self._tails.get(layer)
        joined = torch.cat([x.new_zeros(*x.shape[:-1], size) if tail is None else tail, x], dim=-1)
        self._tails[layer] = joined[..., -size:]
        return joined


def _reach(layer: Any) -> int:
    """Inputs before its own that a causal convolution sees."""
    conv = layer.conv
    return int((conv.kernel_size[0] - 1) * conv.dilation[0] + 1 - conv.stride[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the engine's process found in the checkpoint."""

    pid: int
    model_type: str
    sample_rate_hz: int
    frame_size: int
    window: int
    position_bytes: int
    dtype: str


# In the engine's process only: the model, and its sessions.
_model: Any = None
_dialogues: dict[int, Dialogue] = {}


def _attend() -> None:
    """Leave a core to the load generator, as threads that spin for one cost more than they bring; do not outlive it."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    transformers_logging.disable_progress_bar()
    threading.Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def load(checkpoint: str) -> Any:
    """The model, ready to serve. Raises ValueError for a Mimi that cannot be streamed."""
    model = MoshiForConditionalGeneration.from_pretrained(checkpoint, local_files_only=True).eval()
    mimi = model.audio_encoder
    wide = [
        conv
        for conv in (m.conv for m in mimi.modules() if isinstance(m, MimiConvTranspose1d))
        if conv.kernel_size[0] != 2 * conv.stride[0]
    ]
    if (
        wide
        or not mimi.config.use_causal_conv
        or mimi.config.trim_right_ratio != 1
        or mimi.config.pad_mode != "constant"
    ):
        raise ValueError(
            f"{checkpoint}: its Mimi cannot be decoded frame by frame: that takes causal convolutions with constant "
            "padding, trimmed on the right, and transposed ones of twice their stride, as published"
        )
    return model


def _open_model(checkpoint: str) -> _Facts:
    global _model
    _model = load(checkpoint)
    config, mimi = _model.config, _model.config.audio_encoder_config
    os.nice(_NICE)
    heads_bytes = config.num_key_value_heads * config.head_dim * _model.dtype.itemsize
    return _Facts(
        pid=os.getpid(),
        model_type=config.model_type,
        sample_rate_hz=mimi.sampling_rate,
        frame_size=round(mimi.sampling_rate / mimi.frame_rate),
        window=config.sliding_window,
        position_bytes=2 * config.num_hidden_layers * heads_bytes,
        dtype=str(_model.dtype).removeprefix("torch."),
    )


def _hear(key: int, seed: int, samples: NDArray[np.float32]) -> Spoken:
    if key not in _dialogues:
        _dialogues[key] = Dialogue(_model, torch.Generator().manual_seed(seed))
    return _dialogues[key].converse(samples)


def _forget(key: int) -> None:
    _dialogues.pop(key, None)


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
        self._facts: _Facts | None = None
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
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_attend)
        try:
            self._facts = await self._call(_open_model, self._checkpoint)
            await self._warm_up(self._facts)
        except BaseException:
            await self.stop()
            raise
        self._num_tokens = 0

    async def _warm_up(self, facts: _Facts) -> None:
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
        heard: asyncio.Queue[Turn | None] = asyncio.Queue()
        listener = asyncio.create_task(_listen(turns, heard))
        try:
            while (turn := await heard.get()) is not None:
                frames = self._cut(turn)
                if key not in self._lines:
                    self._lines[key] = line
                    await self._slots.acquire()
                    line.has_slot = True
                for left, frame in zip(reversed(range(len(frames))), frames, strict=True):
                    line.busy = True
                    spoken = await self._call(_hear, key, seed, frame)
                    line.busy, line.num_kept = False, spoken.num_kept
                    self._num_tokens += 1
                    yield replace(spoken, turn_done=not left)
            await listener  # what the caller's own turns raised
        finally:
            self._hang_up(key, line)
            listener.cancel()
            await asyncio.wait([listener])

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
            forgotten = self._pool.submit(_forget, key)
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

    def _known(self) -> _Facts:
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


async def _listen(turns: AsyncIterator[Turn], heard: "asyncio.Queue[Turn | None]") -> None:
    """Take turns when they are spoken, however far the answers lag; None ends them."""
    try:
        async for turn in turns:
            heard.put_nowait(turn)
    finally:
        heard.put_nowait(None)
