"""Claims C11 and C14: the cliff belongs to the pool. Every model and load meets it, and the bound takes it away."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.cliff import predicted_s
from metronome.frames import NS_PER_S
from metronome.stats import engine_latency_ns, quantile
from metronome.trace import Trace

NAME, EXPERIMENT = "generality", "generality"
_COLUMNS = 2
_BINS = 40  # per panel: frames of 80 ms would draw a hedge
_NEVER = 30.0  # where frames that never came are drawn, in deadlines
_LABELS = {"agent": "agent: bursts of text", "video": "video: large frames"}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark: series "time" (x in s, y = median latency over the deadline), "t_sat" (x in s)."""
    rows = []
    for point in trace.points.itertuples():
        base = {"case": case_of(point), "kv": point.kv, "bounded": point.kv != "unbounded", "sessions": point.sessions}
        frames = trace.of(point.point_id).frames
        bin_ns = max(point.duration_ns // _BINS, point.period_ns)
        for _, group in frames.groupby(frames.release_ns // bin_ns):
            latency = quantile(engine_latency_ns(group), 0.5)
            x = group.release_ns.median() / NS_PER_S
            rows.append(base | {"series": "time", "x": x, "y": latency / point.deadline_ns})
        if point.kv == "unbounded" and (t_sat := predicted_s(point)) is not None:
            rows.append(base | {"series": "t_sat", "x": t_sat, "y": np.nan})
    return pd.DataFrame(rows)


def case_of(point: object) -> str:
    """The case's name: a model where the load is voice, else the load."""
    return str(point.model if point.workload == "voice" else point.workload)  # type: ignore[attr-defined]


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    cases = sorted(set(marks.case), key=lambda case: (case in _LABELS, case))  # models, then other loads
    num_rows = -(-len(cases) // _COLUMNS)
    figure = Figure(figsize=(style.COLUMN_IN, 1.2 * num_rows + 0.6))
    panels = figure.subplots(num_rows, _COLUMNS, sharey=True, squeeze=False)
    for ax, case in zip(panels.flat, cases, strict=False):
        rows = trace.points[[case_of(p) == case for p in trace.points.itertuples()]]
        _draw_case(ax, marks[marks.case == case], _title(rows))
        for engine in sorted(set(rows.engine) - {"vllm"}):
            ax.text(0.5, 0.75, f"not vLLM: {engine}", transform=ax.transAxes, fontsize=style.SMALL, ha="center")
    for ax in panels.flat[len(cases) :]:
        ax.set_axis_off()
    for row in panels:
        row[0].set_ylabel("latency / deadline")
    for ax in panels[-1]:
        ax.set_xlabel("time of release (s)")
    figure.legend(*_legend(panels.flat[0]), loc="outside upper left", ncols=4)
    style.sign(figure, trace)
    return figure


def _title(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    name = _LABELS.get(case_of(first), case_of(first))
    return f"{name}, N={first.sessions}\n({first.weights} weights, {first.period_ns / NS_PER_S:g} s frames)"


def _legend(ax: Axes) -> tuple[list[object], list[str]]:
    handles = [
        *ax.plot([], [], color=style.UNBOUNDED, label="unbounded"),
        *ax.plot([], [], color=style.WINDOW, linestyle="--", label="bounded"),
        *ax.plot([], [], **style.PREDICTED, label="predicted $t_{sat}$"),
        *ax.plot([], [], color=style.MUTED, linewidth=0.7, linestyle=":", label="deadline"),
    ]
    return handles, [h.get_label() for h in handles]


def _draw_case(ax: Axes, marks: pd.DataFrame, title: str) -> None:
    for bounded, line in marks[marks.series == "time"].groupby("bounded"):
        y = np.where(np.isfinite(line.y), line.y, _NEVER)
        look = {"color": style.WINDOW, "linestyle": "--"} if bounded else {"color": style.UNBOUNDED, "linewidth": 1}
        ax.plot(line.x, y, drawstyle="steps-post", **look)
    for x in marks[marks.series == "t_sat"].x:
        ax.axvline(x, **style.PREDICTED, zorder=0)
    ax.axhline(1, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    ax.set_yscale("log")
    ax.set_ylim(0.03, _NEVER * 1.6)
    ax.set_yticks([0.1, 1, _NEVER], ["0.1", "1", "never"])
    ax.minorticks_off()
    ax.set_title(title, fontsize=style.SMALL)
