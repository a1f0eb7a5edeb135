"""The parts of a run's configuration, as frozen dataclasses; unknown keys are refused."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from metronome.models import ModelProfile
from metronome.window import Bound
from metronome.workload import Workload

_strict = ConfigDict(extra="forbid")
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Kv:
    """The KV modes to run, and the bound of mode "window". Sizes in tokens.

    Mode "recycle" keeps as much on a stock engine: requests end at `recycle_at` and start again with what is kept.
    Mode "own": the backend bounds its sessions by itself.
    """

    modes: list[Literal["unbounded", "window", "recycle", "own"]]
    window: int | None = None
    sinks: int = 0
    positions: str = "anchor"
    recycle_at: int | None = None


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
    text_dir: Path = Path(".cache/text")


@dataclass(frozen=True, kw_only=True, config=_strict)
class Target:
    name: Literal["vllm", "null"]


@dataclass(frozen=True, kw_only=True, config=_strict)
class Speech:
    """codec_tokens_per_second: for models that hear no audio themselves, to which speech is tokens of a codec."""

    dir: Path
    codec_tokens_per_second: Annotated[float, Field(gt=0)]


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
class SessionAge:
    """The run on one engine for each of `stream_fixes`, which engine.stream_fixes then is."""

    stream_fixes: list[bool]


@dataclass(frozen=True, kw_only=True, config=_strict)
class ModelCase:
    """One model under one workload. positions: of its sinks; modes: of its KV cache; None: as the run has them."""

    model: ModelProfile
    workload: WorkloadSweep
    positions: str | None = None
    modes: list[str] | None = None


@dataclass(frozen=True, kw_only=True, config=_strict)
class Generality:
    """Every case, or those named in `only`, on the same pool. Where a case names no sessions, the fewest are run that
    fill the unbounded pool within `fill_by` of its duration.
    """

    fill_by: Annotated[float, Field(gt=0, lt=1)]
    cases: dict[str, ModelCase]
    only: list[str] | None = None
