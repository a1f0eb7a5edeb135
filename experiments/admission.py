"""Callers come and go, more than the engine can serve; a policy decides who may come in."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments import sweep
from experiments.points import kv_name
from experiments.progress import Columns, number
from experiments.schema import Run
from experiments.sections import Admission
from metronome.admission import AimdLimit, FixedLimit, GrowthAwareLimit, Limit, Unlimited
from metronome.backends.base import EngineInfo
from metronome.control import Controller
from metronome.frames import NS_PER_MS, NS_PER_S, FrameStatus, SessionSpec
from metronome.gate import Gate
from metronome.service import judge
from metronome.trace import Trace, TraceWriter

COLUMNS: Columns = {
    "policy": lambda r: r["policy"],
    "kv": lambda r: r["kv"],
    "outcome": lambda r: r["outcome"],
    "cause": lambda r: r["cause"] or "-",
    "t collapse": lambda r: number(r["t_collapse_s"], 1),
    "limit": lambda r: number(r["limit"], 1),
    "sessions in": lambda r: number(r["active"], 1),
    "of N*": lambda r: f"{100 * r['active'] / r['n_star']:.0f} %",
    "converged": lambda r: number(r["converged_windows"], 0),
    "late after": lambda r: f"{100 * r['late_share']:.2f} %",
    "engine p95": lambda r: number(r["engine_latency_ms"]["p95"], 0),
    "rho max": lambda r: number(r["rho_max"], 2),
    "refused": lambda r: str(r["refused_sessions"]),
}
CAPTION = (
    "limit and sessions in: means over the last third; converged: control windows until sessions in lie within 10 % of "
    "N*; late after: share of frames from then on, or of the last third; latencies in ms, times in s"
)


@dataclass(frozen=True, slots=True)
class Case(sweep.Point):
    """One policy on one engine. `sessions` counts the lines of speech that callers take in turn."""

    policy: str = "none"

    @property
    def point_id(self) -> str:
        return f"{self.policy}-{self.kv}"

    @property
    def title(self) -> str:
        return self.point_id


def make_cases(run: Run) -> list[Case]:
    """Engine by engine; all see the same callers."""
    assert run.admission is not None
    lines = max(run.workload.sessions)
    return [
        Case(mode, kv_name(run.bound(mode)), run.bound(mode), lines, policy=case.policy)
        for mode in run.kv.modes
        for case in run.admission.cases
        if case.kv == mode
    ]


class Experiment(sweep.Experiment):
    """A sweep over policies."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self._run.admission is not None
        self._admission: Admission = self._run.admission

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        return await self._take_all(make_cases(self._run), writer)

    def specs(self, point: sweep.Point) -> list[SessionSpec]:
        return self._run.workload.make_arrivals(self._admission.offered, point.workload_seed(self._run))

    def controller(self, point: sweep.Point) -> Controller | None:
        assert isinstance(point, Case)
        options = self._admission
        gate = Gate(
            make_limit(self._run, point),
            window_ns=options.control_ms * NS_PER_MS,
            max_wait_ns=options.max_wait_ms * NS_PER_MS,
            shed=options.shed,
        )
        return Controller(gate)

    def served(self, point: sweep.Point) -> dict[str, Any]:
        assert isinstance(point, Case)
        return super().served(point) | {
            "sessions": None,
            "policy": point.policy,
            "control_ns": self._admission.control_ms * NS_PER_MS,
            "offered": tuple(self._admission.offered),
            "target_fraction": self._admission.target_fraction,
            "n_star": self._admission.n_star,
        }

    def predict(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo) -> int | None:
        """Nobody can say: who comes in is decided on the way."""
        return None

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        assert isinstance(point, Case)
        refused = trace.frames[trace.frames.status == FrameStatus.REFUSED].session_id.nunique()
        mine = {"policy": point.policy, "n_star": self._admission.n_star, "refused_sessions": int(refused)}
        return super().judge(point, specs, info, trace) | mine | asdict(judge(trace, self._admission.n_star))


def make_limit(run: Run, case: Case) -> Limit:
    """A policy as configured."""
    options = run.admission
    assert options is not None
    if case.policy == "aimd":
        return AimdLimit(target=options.target_fraction, **asdict(options.aimd))
    if case.policy == "fixed":
        return FixedLimit(int(options.n_star))
    if case.policy == "growth":
        assert run.workload.mean_lifetime_s is not None
        return GrowthAwareLimit(
            num_blocks=run.engine.num_blocks - 1,  # vLLM keeps one as its null block
            block_size=run.engine.block_size,
            growth=run.frame_tokens.growth,
            period_ns=run.workload.period_ns,
            lifetime_ns=run.workload.mean_lifetime_s * NS_PER_S,
            session_blocks=case.bound.max_blocks(run.frame_tokens.num_in) if case.bound else None,
            margin=options.growth_margin,
        )
    return Unlimited()
