"""Sessions on vLLM's streaming input, CPU or CUDA."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from metronome.backends.base import EngineDied, EngineInfo, Turn
from metronome.backends.vllm_audio import Ear
from metronome.backends.vllm_engine import EngineOptions, VllmEngine
from metronome.frames import PoolSample, TurnOutput
from metronome.models import ModelProfile

_WARM_UP_TURNS = 2


class _PoolLogger(StatLoggerBase):  # type: ignore[misc]
    """Keeps the engine's last report and what its metrics observed since they were taken."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.stats: Any = None
        self.stats_ns = 0
        self.forget()

    def forget(self) -> None:
        """Start counting anew; the engine's state stays known."""
        self.preemptions = 0
        self.tokens_out = 0
        self.ttft_ms: list[float] = []
        self.inter_token_ms: list[float] = []

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.stats, self.stats_ns = scheduler_stats, time.monotonic_ns()
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.tokens_out += iteration_stats.num_generation_tokens
            self.ttft_ms += [1e3 * s for s in iteration_stats.time_to_first_tokens_iter]
            self.inter_token_ms += [1e3 * s for s in iteration_stats.inter_token_latencies_iter]

    def log_engine_initialized(self) -> None:
        """Nothing to say: the harness writes its own trace."""


class VllmStreamBackend:
    """A real vLLM engine in its own process; each session is one resumable request."""

    def __init__(self, profile: ModelProfile, options: EngineOptions) -> None:
        self._profile = profile
        self.engine = VllmEngine(profile, options)
        self._pool = _PoolLogger(None)
        self._info: EngineInfo | None = None
        self._ear: Ear | None = None

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() comes first"
        return self._info

    async def start(self) -> None:
        self._pool = _PoolLogger(None)
        self.engine.start([lambda config, index=0: self._pool])
        self._ear = Ear(self._profile, self.engine.llm) if self._profile.audio else None
        await self._warm_up()
        self.engine.yield_cores()
        self._info = self.engine.info()

    async def _warm_up(self) -> None:
        turn: Turn = self._ear.silence() if self._ear else [self._profile.first_audio_token] * 8

        async def turns() -> AsyncIterator[Turn]:
            for _ in range(_WARM_UP_TURNS):
                yield turn

        async for output in self.converse("warm-up", turns()):
            if self._ear and output.num_in is not None:
                self._ear.expect(output.num_in)
        if not await self.drained(timeout_s=10):
            raise RuntimeError("the engine kept the blocks of its first session; see the engine's log")
        self._pool.forget()

    async def stop(self) -> None:
        self.engine.stop()

    async def converse(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[TurnOutput, None]:
        params = self._sampling_params()
        split = TurnSplitter(self._profile.tokens_out, self._stop_ids())
        chunks = self._chunks(turns, split.expect)
        try:
            async with aclosing(self.engine.llm.generate(chunks, params, request_id=session_id)) as outputs:
                async for out in outputs:
                    piece = out.outputs[0]
                    for turn in split.feed(piece.token_ids, piece.finish_reason):
                        yield turn
        except EngineDeadError as error:
            raise EngineDied(str(error)) from error

    async def _chunks(
        self, turns: AsyncIterator[Turn], expect: Callable[[int], None]
    ) -> AsyncGenerator[StreamingInput, None]:
        """expect: told how many positions each turn's input takes."""
        async for turn in turns:
            if isinstance(turn, np.ndarray):
                assert self._ear is not None, f"{self._profile.name} is given token ids, not audio"
                prompt, num_in = await self._ear.hear(turn)
            else:
                prompt, num_in = TokensPrompt(prompt_token_ids=list(turn)), len(turn)
            expect(num_in)
            yield StreamingInput(prompt=prompt)

    def _sampling_params(self) -> SamplingParams:
        profile = self._profile
        return SamplingParams(
            max_tokens=profile.tokens_out,
            min_tokens=0 if profile.turns_vary else profile.tokens_out,
            ignore_eos=profile.ignore_eos,
            stop_token_ids=sorted(self._audio_ids()),
            temperature=profile.temperature,
            output_kind=RequestOutputKind.DELTA,
            detokenize=False,
        )

    def _stop_ids(self) -> frozenset[int]:
        if self._profile.ignore_eos:
            return self._audio_ids()
        eos = self.engine.llm.model_config.hf_text_config.eos_token_id
        return self._audio_ids() | frozenset([eos] if isinstance(eos, int) else eos or [])

    def _audio_ids(self) -> frozenset[int]:
        """Of the codec, where one of them ends a turn."""
        first = self._profile.first_audio_token
        return frozenset(range(first, first + self._profile.num_audio_tokens) if self._profile.stop_at_audio else ())

    def sample(self, t_ns: int) -> PoolSample:
        pool, total = self._pool, self.info.num_blocks
        stats = pool.stats
        sample = PoolSample(
            t_ns=t_ns,
            blocks_used=round(stats.kv_cache_usage * total) if stats else 0,
            blocks_total=total,
            running=stats.num_running_reqs if stats else 0,
            waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs if stats else 0,
            deferred=stats.num_skipped_waiting_reqs if stats else 0,
            preemptions=pool.preemptions,
            tokens_out=pool.tokens_out,
            stats_age_ns=time.monotonic_ns() - pool.stats_ns if stats else None,
            ttft_ms=tuple(pool.ttft_ms),
            inter_token_ms=tuple(pool.inter_token_ms),
        )
        pool.ttft_ms.clear()
        pool.inter_token_ms.clear()
        return sample

    async def drained(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not self.engine.llm.errored:  # a dead engine frees nothing
            stats = self._pool.stats
            if stats and not (stats.kv_cache_usage or stats.num_running_reqs or stats.num_waiting_reqs):
                return True
            await asyncio.sleep(0.02)
        return False


@dataclass(slots=True)
class TurnSplitter:
    """Cuts a session's token stream into turns: a turn ends with a stop token or its `max_tokens`-th token.

    vLLM merges outputs that were not fetched in time, so one delta can hold the end of one turn and the start of the
    next; its finish reason is then the last one's only.
    """

    max_tokens: int
    stop_ids: frozenset[int]
    _ids: list[int] = field(default_factory=list, init=False)
    _num_sampled: int = field(default=0, init=False)
    _num_in: deque[int] = field(default_factory=deque, init=False)

    def expect(self, num_in: int) -> None:
        """Another turn was sent, of so many positions."""
        self._num_in.append(num_in)

    def feed(self, token_ids: Sequence[int], finish_reason: str | None) -> Iterator[TurnOutput]:
        for token in token_ids:
            self._ids.append(token)
            self._num_sampled += 1
            if token in self.stop_ids or self._num_sampled == self.max_tokens:
                yield self._end_turn()
        if self._num_sampled and finish_reason == "length":  # cut short of max_tokens: the session met max_model_len
            yield self._end_turn(hit_max_len=True)
        elif self._ids:
            yield self._take()

    def _end_turn(self, hit_max_len: bool = False) -> TurnOutput:
        self._num_sampled = 0
        num_in = self._num_in.popleft() if self._num_in else None
        return replace(self._take(), turn_done=True, hit_max_len=hit_max_len, num_in=num_in)

    def _take(self) -> TurnOutput:
        """What came since the last output."""
        ids, self._ids = tuple(self._ids), []
        num_spoken = sum(token not in self.stop_ids for token in ids)
        return TurnOutput(num_tokens=num_spoken, num_sampled=len(ids), turn_done=False, token_ids=ids)
