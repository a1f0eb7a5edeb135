"""From Hydra's configuration to frozen dataclasses. Unknown keys and impossible values are refused, by name."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from metronome.models import ModelProfile
from metronome.saturation import FrameTokens
from metronome.texts import find_texts
from metronome.window import Bound, blocks_for
from metronome.workload import Workload

_strict = ConfigDict(extra="forbid")
Positive = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, the value and the fix."""


@dataclass(frozen=True, kw_only=True, config=_strict)
class Kv:
    """The KV modes to run, and the bound of mode "window". Sizes in tokens."""

    modes: list[Literal["unbounded", "window"]]
    window: int | None = None
    sinks: int = 0
    positions: str = "anchor"


@dataclass(frozen=True, kw_only=True, config=_strict)
class Engine:
    """vLLM's own options by vLLM's own names; num_blocks is its num_gpu_blocks_override."""

    num_blocks: Positive
    block_size: Positive
    max_model_len: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    enforce_eager: bool
    seed: int


@dataclass(frozen=True, kw_only=True, config=_strict)
class WorkloadSweep(Workload):
    """A workload for each number of sessions in `sessions`; `seed` draws what each session hears."""

    sessions: list[int]
    seed: int


@dataclass(frozen=True, kw_only=True, config=_strict)
class Target:
    name: Literal["vllm", "null"]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Speech:
    dir: Path


@dataclass(frozen=True, kw_only=True, config=_strict)
class Out:
    dir: Path | None
    sample_ms: Positive  # the pool is sampled this often


@dataclass(frozen=True, kw_only=True, config=_strict)
class BoundChoice:
    window: int
    sinks: int
    positions: str

    def bound(self, block_size: int) -> Bound:
        return Bound(window=self.window, sinks=self.sinks, positions=self.positions, block_size=block_size)


@dataclass(frozen=True, kw_only=True, config=_strict)
class Ablation:
    """Texts of twice `trained_len`, scored and continued under each bound, and by the unbounded engine up to it.

    Sizes in tokens.
    """

    text_dir: Path
    texts: list[str]
    trained_len: Positive
    segment: Positive
    turn_tokens: Positive
    prompt_tokens: Positive
    continue_tokens: Positive
    continuations: Positive
    bounds: list[BoundChoice]


@dataclass(frozen=True, kw_only=True, config=_strict)
class LongCall:
    """One session of `num_tokens`, under each bound, and unbounded until its `border`. Sizes in tokens."""

    text_dir: Path
    num_tokens: Positive
    frame_tokens: Positive
    border: Positive
    bounds: list[BoundChoice]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Run:
    """One run, as it will be executed."""

    name: str
    model: ModelProfile
    kv: Kv
    target: Target
    workload: WorkloadSweep
    engine: Engine
    speech: Speech
    out: Out
    # Where one of these is given, the run is that and not a sweep of sessions.
    ablation: Ablation | None = None
    long_call: LongCall | None = None

    @property
    def frame_tokens(self) -> FrameTokens:
        return FrameTokens(num_in=self.model.tokens_in(self.workload.period_ms), num_out=self.model.tokens_out)

    def bound(self, mode: str) -> Bound | None:
        """The KV bound of a mode, None for the unbounded engine."""
        if mode == "unbounded":
            return None
        if self.kv.window is None:
            raise ConfigError("kv.window=null: mode 'window' needs a size in tokens, e.g. kv.window=256")
        return Bound(
            window=self.kv.window,
            sinks=self.kv.sinks,
            positions=self.kv.positions,
            block_size=self.engine.block_size,
        )


def load(config: DictConfig) -> Run:
    """Validate the whole configuration before anything is started. Raises ConfigError."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    try:
        run: Run = TypeAdapter(Run).validate_python(values)
        _check(run)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e, values) for e in error.errors())) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return run


def _explain(error: Any, values: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        close = difflib.get_close_matches(key, _known_keys(), n=1)
        fix = f"did you mean {close[0]}?" if close else "remove it"
        return f"{key}={error['input']!r}: unknown key; {fix}"
    if error["type"] == "missing":
        return f"{key} is missing: set it, e.g. {key}=..."
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{key}={error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _known_keys(kind: Any = Run, prefix: str = "") -> Iterator[str]:
    for name, field in kind.__dataclass_fields__.items():
        yield prefix + name
        if hasattr(field.type, "__dataclass_fields__"):
            yield from _known_keys(field.type, f"{prefix}{name}.")


def _check(run: Run) -> None:
    """What no single key shows."""
    if not run.kv.modes:
        raise ConfigError("kv.modes=[]: name at least one of unbounded, window")
    if not run.workload.sessions:
        raise ConfigError("workload.sessions=[]: name at least one number of sessions, e.g. workload.sessions=[8]")
    for key, values in (("workload.sessions", run.workload.sessions), ("kv.modes", run.kv.modes)):
        if len(set(values)) < len(values):
            raise ConfigError(f"{key}={values}: names a point twice; name each once")
    for num_sessions in run.workload.sessions:
        run.workload.make_sessions(num_sessions)
        if num_sessions > run.engine.max_num_seqs:
            raise ConfigError(
                f"workload.sessions has {num_sessions}, engine.max_num_seqs={run.engine.max_num_seqs}: "
                f"set engine.max_num_seqs to {num_sessions} or more"
            )
    per_frame = run.frame_tokens.growth
    if run.engine.max_model_len <= per_frame:
        raise ConfigError(
            f"engine.max_model_len={run.engine.max_model_len}: one frame alone takes {per_frame} tokens; "
            "raise it, or shorten workload.period_ms"
        )
    if run.ablation:
        _check_ablation(run, run.ablation)
    elif run.long_call:
        _check_long_call(run, run.long_call)
    else:
        for mode in run.kv.modes:
            _check_pool(run, run.bound(mode))
    _check_files(run)


def _check_pool(run: Run, bound: Bound | None) -> None:
    """vLLM starts only if one session of max_model_len fits; bounded, only its plateau must."""
    engine = run.engine
    usable = engine.num_blocks - 1
    if bound is None:
        need = blocks_for(engine.max_model_len, engine.block_size)
        fix = (
            f"engine.num_blocks to {need + 1} or more, or engine.max_model_len to {usable * engine.block_size} or less"
        )
    else:
        # vLLM reserves for two batches in flight: blocks behind a window go once the step that left them has settled.
        need = bound.max_blocks(min(2 * engine.max_num_batched_tokens, engine.max_model_len))
        fix = f"engine.num_blocks to {need + 1} or more, or kv.window or engine.max_num_batched_tokens lower"
    if usable < need:
        raise ConfigError(
            f"engine.num_blocks={engine.num_blocks}: {usable} usable blocks cannot hold one session, "
            f"which needs {need}; set {fix}"
        )


def _check_ablation(run: Run, ablation: Ablation) -> None:
    if run.model.weights != "real":
        raise ConfigError(f"model.weights={run.model.weights}: random weights know no text; use real ones")
    if not ablation.texts or not ablation.bounds:
        raise ConfigError("ablation.texts and ablation.bounds: name at least one of each")
    for name in ablation.texts:
        if not (ablation.text_dir / f"{name}.txt").exists():
            raise ConfigError(
                f"ablation.texts has {name}: not in {ablation.text_dir}; fetch it: python scripts/fetch_text.py"
            )
    if run.engine.max_model_len <= 2 * ablation.trained_len:
        raise ConfigError(
            f"ablation.trained_len={ablation.trained_len}: texts are twice as long, and must be below "
            f"engine.max_model_len={run.engine.max_model_len}"
        )
    for choice in ablation.bounds:
        _check_pool(run, choice.bound(run.engine.block_size))


def _check_long_call(run: Run, call: LongCall) -> None:
    find_texts(call.text_dir)
    if run.engine.max_model_len <= call.num_tokens:
        raise ConfigError(
            f"long_call.num_tokens={call.num_tokens}: must be below engine.max_model_len={run.engine.max_model_len}"
        )
    for choice in call.bounds:
        _check_pool(run, choice.bound(run.engine.block_size))


def _check_files(run: Run) -> None:
    from metronome.audio import LogMelCodec, find_clips  # brings librosa: only once the rest is known to be right

    checkpoint = run.model.checkpoint
    local = checkpoint.startswith((".", "/"))  # else a hub id
    if run.target.name == "vllm" and local and not (Path(checkpoint) / "config.json").exists():
        raise ConfigError(f"model.checkpoint={checkpoint}: no checkpoint there; build it with: make setup")
    LogMelCodec(tokens_per_second=run.model.tokens_per_second)
    find_clips(run.speech.dir)
