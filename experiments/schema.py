"""From Hydra's configuration to frozen dataclasses. Unknown keys and impossible values are refused, by name."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from experiments import profiles
from experiments.checks import ConfigError, check
from experiments.sections import (
    Ablation,
    Admission,
    Capacity,
    Engine,
    Generality,
    Kv,
    LongCall,
    ModelCase,
    Out,
    Repeat,
    Saturation,
    SessionAge,
    Speech,
    Target,
    WorkloadSweep,
)
from metronome.models import ModelProfile
from metronome.saturation import FrameTokens, predict_t_sat_ns
from metronome.window import Bound


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
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
    generality: Generality | None = None
    session_age: SessionAge | None = None

    def cases(self) -> "dict[str, Run]":
        """Each case as a run of its own."""
        assert self.generality is not None
        cases, only = self.generality.cases, self.generality.only
        unknown = set(only or ()) - set(cases)
        if unknown or only == []:
            raise ConfigError(f"generality.only={only}: must name some of {', '.join(cases)}")
        return {
            name: self._case(case, self.generality.fill_by) for name, case in cases.items() if name in (only or cases)
        }

    def _case(self, case: ModelCase, fill_by: float) -> "Run":
        kv = replace(self.kv, positions=case.positions or self.kv.positions, modes=case.modes or self.kv.modes)
        run = replace(self, model=case.model, workload=case.workload, kv=kv, generality=None)
        if run.workload.sessions:
            return run
        return replace(run, workload=replace(run.workload, sessions=[run.marginal_sessions(fill_by)]))

    def marginal_sessions(self, fill_by: float) -> int:
        """The fewest sessions that fill the unbounded pool by then, as the block arithmetic says."""
        engine, end_ns = self.engine, fill_by * self.workload.duration_ns
        for num_sessions in range(1, engine.max_num_seqs + 1):
            specs = self.workload.make_sessions(num_sessions, self.workload.seed)
            t_sat = predict_t_sat_ns(specs, self.frame_tokens, engine.num_blocks - 1, engine.block_size)
            if t_sat is not None and t_sat <= end_ns:
                return num_sessions
        raise ConfigError(
            f"generality.fill_by={fill_by}: engine.max_num_seqs={engine.max_num_seqs} sessions of {self.model.name} do "
            "not fill the pool by then; lower engine.num_blocks or lengthen workload.duration_s"
        )

    @property
    def frame_tokens(self) -> FrameTokens:
        num_in = self.workload.tokens_in or self.model.tokens_in(self.workload.period_ms)
        return FrameTokens(num_in=num_in, num_out=self.model.tokens_out)

    def bound(self, mode: str) -> Bound | None:
        """The KV bound of a mode, None for the unbounded engine."""
        if mode != "window":
            return None
        if self.kv.window is None:
            raise ConfigError("kv.window=null: mode 'window' needs a size in tokens, e.g. kv.window=256")
        return Bound(
            window=self.kv.window,
            sinks=self.kv.sinks,
            positions=self.kv.positions,
            block_size=self.engine.block_size,
        )

    def kv_name(self, mode: str) -> str:
        """A KV mode's name in every table."""
        names = {"recycle": f"recycle{self.kv.window}+{self.kv.sinks}", "own": "own"}
        return names.get(mode) or kv_name(self.bound(mode))


def kv_name(bound: Bound | None) -> str:
    return f"window{bound.window}+{bound.sinks}" if bound else "unbounded"


def load(config: DictConfig) -> Run:
    """Validate the whole configuration before anything is started. Raises ConfigError."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    try:
        profiles.settle(values)
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
