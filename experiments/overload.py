"""The load steps up past what the engine can serve, and down again: goodput, refusals and recovery."""

from collections.abc import Sequence
from typing import Any

from experiments import admission, sweep
from experiments.progress import Columns, number
from metronome.backends.base import EngineInfo
from metronome.frames import NS_PER_S, FrameStatus, SessionSpec
from metronome.service import recovered_after, steps, windows
from metronome.trace import Trace

COLUMNS: Columns = {
    "policy": lambda r: r["policy"],
    "kv": lambda r: r["kv"],
    "outcome": lambda r: r["outcome"],
    "goodput by offered load (frames/s)": lambda r: _by_step(r, "goodput"),
    "at most, of the best": lambda r: f"{100 * r['goodput_share']:.0f} %",
    "recovered": lambda r: number(r["recovered_windows"], 0),
    "refused by step": lambda r: _by_step(r, "refused"),
    "late": lambda r: f"{100 * r['late_share_all']:.1f} %",
    "engine p95": lambda r: number(r["engine_latency_ms"]["p95"], 0),
}
CAPTION = (
    "goodput: frames answered in time, over the second half of each step; of the best: at the highest load; recovered: "
    "control windows after the step down until p95 is below its target and at most 1 % late, for three windows"
)


def _by_step(result: dict[str, Any], key: str) -> str:
    return " ".join(f"{step['of_n_star']:.1f}x: {step[key]:.0f}" for step in result["steps"])


class Experiment(admission.Experiment):
    """The same callers in steps."""

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        return super().judge(point, specs, info, trace) | conclude(trace)


def conclude(trace: Trace) -> dict[str, Any]:
    """Of one point."""
    point, by_window = trace.points.iloc[0], windows(trace)
    table = steps(point, by_window)
    top = int(table.offered.to_numpy().argmax())
    down_ns = float(table.end_ns.iloc[top])
    own = trace.frames[trace.frames.status != FrameStatus.REFUSED]
    rows = table.assign(of_n_star=table.offered / point.n_star).to_dict("records")
    return {
        "steps": [{k: row[k] for k in ("of_n_star", "goodput", "active", "late_share", "refused")} for row in rows],
        "goodput_share": float(table.goodput.iloc[top] / table.goodput.max()),
        "recovered_windows": recovered_after(
            by_window, down_ns, float(point.deadline_ns), float(point.target_fraction)
        ),
        "down_s": down_ns / NS_PER_S,
        "late_share_all": float((own.status != FrameStatus.OK).mean()),
    }
