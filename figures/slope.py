"""Claims C6 and C7: bounded, latency rises with every session and binds long before the memory is full."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.capacity import MAX_LATE, estimate, find_ceiling, find_n_star, ladder_levels, measure, spearman
from metronome.frames import NS_PER_MS
from metronome.trace import Trace

NAME, EXPERIMENT = "slope", "capacity"


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark; x = N, y in ms unless said.

    Series "p50", "p95": of engine latency on the ladder. "tried": p95 of the points that the search tried in other
    repeats. "utilisation", "late_share": y = a share. "deadline", "target": y alone. "n_star", "ceiling": x with its
    interval or range. "predicted_ceiling": x. "spearman": y of N and p95.
    """
    point = trace.points.iloc[0]
    rows: list[dict[str, object]] = []
    for level in ladder_levels(trace):
        values = {"p50": level.p50_ns / NS_PER_MS, "p95": level.p95_ns / NS_PER_MS}
        values |= {"utilisation": level.utilisation, "late_share": level.late_share}
        rows += [{"series": name, "x": level.sessions, "y": y} for name, y in values.items()]
    served = trace.points[trace.points.sessions.notna()]
    for _, one in served[served.repeat_idx > 0].iterrows():
        level = measure(one, trace.of(one.point_id).frames)
        rows.append({"series": "tried", "x": level.sessions, "y": level.p95_ns / NS_PER_MS})
    n_star = estimate(find_n_star(trace))
    ceilings = [find_ceiling(trace.of(p)) for p in trace.points[trace.points.sessions.isna()].point_id]
    measured = [c.measured for c in ceilings]
    ladder = trace.points[trace.points.warm_up_ns.notna()].iloc[0]
    deadline_ms = point.deadline_ns / NS_PER_MS
    return pd.DataFrame(
        [
            *rows,
            {"series": "deadline", "y": deadline_ms},
            {"series": "target", "y": ladder.target_fraction * deadline_ms},
            {"series": "n_star", "x": n_star.mean, "low": n_star.low, "high": n_star.high},
            {"series": "ceiling", "x": float(np.mean(measured)), "low": min(measured), "high": max(measured)},
            {"series": "predicted_ceiling", "x": ceilings[0].predicted},
            {"series": "spearman", "y": spearman(ladder_levels(trace))},
        ]
    )


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 3.9))
    left, right = figure.subplots(2, 1, height_ratios=[5, 3])
    _draw_latency(left, marks)
    _draw_utilisation(right, marks)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    style.sign(figure, trace)
    return figure


def _draw_latency(ax: Axes, marks: pd.DataFrame) -> None:
    of = {series: group for series, group in marks.groupby("series")}
    one = {
        name: of[name].iloc[0] for name in ("deadline", "target", "n_star", "ceiling", "predicted_ceiling", "spearman")
    }
    top = 3 * one["deadline"].y
    for series, marker, line in (("p95", "o", "-"), ("p50", "^", "--")):
        values = of[series].replace(np.inf, np.nan)
        ax.plot(values.x, values.y, color=style.WINDOW, marker=marker, linestyle=line, label=f"engine {series}")
    if "tried" in of:
        ax.plot(of["tried"].x, of["tried"].y, "o", color=style.WINDOW, fillstyle="none", label="p95, other repeats")
    for name, line in (("deadline", "-"), ("target", ":")):
        ax.axhline(one[name].y, color="black", linewidth=0.8, linestyle=line)
    n_star, ceiling = one["n_star"], one["ceiling"]
    edge = 0.02 * ceiling.x
    ax.text(ceiling.x - edge, one["deadline"].y * 1.05, "deadline", fontsize=style.SMALL, ha="right")
    ax.text(ceiling.x - edge, one["target"].y * 0.95, "target", fontsize=style.SMALL, ha="right", va="top")
    ax.axvspan(n_star.low, n_star.high, color=style.WINDOW, alpha=0.2, linewidth=0)
    ax.axvline(n_star.x, color=style.WINDOW, linewidth=0.8)
    interval = "" if pd.isna(n_star.low) else f" [{n_star.low:.0f}, {n_star.high:.0f}]"
    right = n_star.x if pd.isna(n_star.high) else n_star.high
    foot = ax.get_xaxis_transform()
    ax.text(right + edge / 2, 0.03, f"N* = {n_star.x:.0f}{interval}", transform=foot)
    ax.axvline(ceiling.x, color=style.UNBOUNDED, linewidth=0.8)
    label = f"memory holds {ceiling.x:.0f}\n(predicted {one['predicted_ceiling'].x:.0f})"
    ax.text(ceiling.x - edge, 0.15, label, ha="right", transform=foot)
    ax.set_yscale("log")
    ax.set_ylim(None, top)
    style.plain_log(ax.yaxis)
    ax.set_xlim(0, 1.05 * ceiling.x)
    ax.set_xlabel("sessions, N")
    ax.set_ylabel("engine latency (ms, log)")
    ax.set_title(f"(a) a slope: Spearman(N, p95) = {one['spearman'].y:.3f}")


def _draw_utilisation(ax: Axes, marks: pd.DataFrame) -> None:
    n_star = marks[marks.series == "n_star"].iloc[0]
    shares = {"utilisation": "mean service time / period", "late_share": "late frames"}
    for (series, label), marker, line in zip(shares.items(), "os", ("-", "--"), strict=True):
        one = marks[(marks.series == series) & np.isfinite(marks.y)]
        color = style.WINDOW if series == "utilisation" else style.UNBOUNDED
        ax.plot(one.x, one.y, color=color, marker=marker, linestyle=line, label=label)
    ax.axhline(1, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    ax.axvline(n_star.x, color=style.WINDOW, linewidth=0.8)
    ax.set_ylim(-0.03, 1.3)
    ax.set_xlim(0, None)
    ax.set_xlabel("sessions, N")
    ax.set_ylabel("share")
    ax.set_title(f"(b) N*: at most {100 * MAX_LATE:g} % late")
    ax.legend(loc="upper left")
