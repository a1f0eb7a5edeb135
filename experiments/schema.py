"""From Hydra's configuration to frozen dataclasses. Unknown keys and impossible values are refused, by name."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from experiments import profiles
from experiments.checks import ConfigError, check
from metronome.models import ModelProfile
from metronome.saturation import FrameTokens
from metronome.window import Bound
from metronome.workload import Workload

_strict = ConfigDict(extra="forbid")
Positive = Annotated[int, Field(ge=1)]


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
    stream_fixes: bool  # of sessions that hear audio: see metronome.plugin.stream_fixes


@dataclass(frozen=True, kw_only=True, config=_strict)
class WorkloadSweep(Workload):
    """A workload for each number of sessions in `sessions`; `seed` draws what each session hears.

    says: what a frame holds, speech or text. tokens_in: its input tokens; None: as many as the model makes of a period
    of speech.
    """

    name: str
    sessions: list[int]
    seed: int
    says: Literal["speech", "text"] = "speech"
    tokens_in: Positive | None = None


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
class Repeat:
    """Every point is run `runs` times on each of `batches` engines; only how long sessions last differs."""

    batches: Positive
    runs: Positive


@dataclass(frozen=True, kw_only=True, config=_strict)
class Saturation:
    """The paper's line is fitted to each point until the pool is `fit_until` full, and extended from there."""

    fit_until: Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Capacity:
    """N* is the largest N whose p95 stays below `target_fraction` of the deadline, judged after `warm_up_s`.

    The search is run `repeats` times, with other phases; the pool is filled `ceilings` times with sessions of
    `ceiling_frames` frames.
    """

    warm_up_s: Annotated[float, Field(ge=0)]
    target_fraction: Annotated[float, Field(gt=0, le=1)]
    repeats: Positive
    ceilings: Annotated[int, Field(ge=0)]
    ceiling_frames: Positive


@dataclass(frozen=True, kw_only=True, config=_strict)
class Aimd:
    """See metronome.admission.AimdLimit."""

    start: float
    floor: float
    ceiling: float
    increase: float
    decrease: float
    in_use: float


@dataclass(frozen=True, kw_only=True, config=_strict)
class Case:
    """One policy on the engine of one KV mode."""

    kv: Literal["unbounded", "window"]
    policy: Literal["none", "fixed", "aimd", "growth"]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Admission:
    """Callers come by chance and stay for workload.mean_lifetime_s in the mean.

    offered: sessions that would be in, were all let in; one entry per equal part of the duration. n_star: sessions, as
    `+exp=capacity` measured them; policy "fixed" admits so many. Policies look at windows of `control_ms`, AIMD for a
    p95 of `target_fraction` of the deadline.
    """

    offered: list[float]
    n_star: Annotated[float, Field(ge=1)]
    control_ms: Positive
    max_wait_ms: Annotated[int, Field(ge=0)]
    shed: bool
    target_fraction: Annotated[float, Field(gt=0, le=1)]
    aimd: Aimd
    growth_margin: Annotated[float, Field(ge=0)]
    cases: list[Case]
    steps: bool = False  # judge each part of the duration by itself


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
    # Where one of these is given, the sweep is that.
    repeat: Repeat | None = None
    saturation: Saturation | None = None
    capacity: Capacity | None = None
    admission: Admission | None = None

    @property
    def frame_tokens(self) -> FrameTokens:
        num_in = self.workload.tokens_in or self.model.tokens_in(self.workload.period_ms)
        return FrameTokens(num_in=num_in, num_out=self.model.tokens_out)

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
    profiles.settle(values)
    try:
        run: Run = TypeAdapter(Run).validate_python(values)
        check(run)
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
