"""Load past what the engine can serve, and back: what arrives in time, with a gate and without."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.admission import TITLES
from metronome.frames import NS_PER_S
from metronome.service import recovered_after, steps, windows
from metronome.trace import Trace

NAME, EXPERIMENT = "overload", "overload"
_STYLES = {"aimd": {"color": style.WINDOW, "marker": "o"}, "none": {"color": style.UNBOUNDED, "marker": "s"}}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark; x in s since the start. Goodput: frames per second that were answered in time.

    Series "goodput", "active": per control window. "step": the second half of each step of the load, x its load over
    N*, y its goodput, low its refusals. "offered": x where a step begins, y its load over N*. "recovered": y = control
    windows after the step down.
    """
    rows: list[dict[str, object]] = []
    for point in trace.points.sort_values("policy").itertuples():
        one, base = trace.of(point.point_id), {"policy": point.policy}
        table = windows(one)
        loads = steps(one.points.iloc[0], table)
        for series in ("goodput", "active"):
            rows += [
                base | {"series": series, "x": t / NS_PER_S, "y": y}
                for t, y in zip(table.t_ns, table[series], strict=True)
            ]
        for step in loads.itertuples():
            of_n_star = step.offered / point.n_star
            rows.append(base | {"series": "step", "x": of_n_star, "y": step.goodput, "low": step.refused})
            rows.append(base | {"series": "offered", "x": step.start_ns / NS_PER_S, "y": of_n_star})
        down_ns = loads.end_ns.iloc[int(loads.offered.to_numpy().argmax())]
        recovered = recovered_after(table, down_ns, float(point.deadline_ns), float(point.target_fraction))
        rows.append(base | {"series": "recovered", "x": down_ns / NS_PER_S, "y": recovered})
    return pd.DataFrame(rows)


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 4.6))
    grid = figure.add_gridspec(3, 1, height_ratios=[5, 4, 4])
    above = figure.add_subplot(grid[0])
    below = figure.add_subplot(grid[1], sharex=above)
    steps = figure.add_subplot(grid[2])
    for policy, own in marks.groupby("policy"):
        color = _STYLES[policy]["color"]
        for ax, series in ((above, "active"), (below, "goodput")):
            one = own[own.series == series]
            ax.plot(one.x, one.y, color=color, linestyle="-" if policy == "aimd" else "--", label=TITLES[policy])
    _draw_offered(above, marks, trace)
    above.set_ylabel("sessions in")
    above.set_title("(a) the load steps up and down")
    above.tick_params(labelbottom=False)
    below.set_ylabel("frames on time (1/s)")
    below.set_xlabel("time (s)")
    below.set_ylim(0, None)
    _draw_steps(steps, marks)
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    style.sign(figure, trace)
    return figure


def _draw_offered(ax: Axes, marks: pd.DataFrame, trace: Trace) -> None:
    point = trace.points.iloc[0]
    offered = marks[(marks.series == "offered") & (marks.policy == marks.policy.iloc[0])]
    edges = [*offered.x, point.duration_ns / NS_PER_S]
    ax.stairs(offered.y * point.n_star, edges, color=style.MUTED, linewidth=0.8, baseline=None, label="offered")
    ax.axhline(point.n_star, color=style.MUTED, linewidth=0.8, linestyle=":")
    top = 1.35 * offered.y.max() * point.n_star
    for start, end, y in zip(edges[:-1], edges[1:], offered.y, strict=True):
        ax.text((start + end) / 2, 0.99 * top, f"{y:g} N*", fontsize=style.SMALL, ha="center", va="top")
    ax.set_ylim(0, top)
    ax.set_xlim(0, edges[-1])


def _draw_steps(ax: Axes, marks: pd.DataFrame) -> None:
    for policy, own in marks[marks.series == "step"].groupby("policy"):
        up = own[: int(own.x.to_numpy().argmax()) + 1]
        line = "-" if policy == "aimd" else "--"
        ax.plot(up.x, up.y, linestyle=line, **_STYLES[policy])
        back = own[len(up) :]
        ax.plot(back.x, back.y, linestyle="none", fillstyle="none", **_STYLES[policy])
    ax.set_ylim(0, None)
    ax.set_xlabel("offered load over N*")
    ax.set_xticks(sorted(set(marks[marks.series == "step"].x)))
    ax.set_ylabel("frames on time (1/s)")
    ax.set_title("(b) each step, settled; hollow: after the step down")
