"""Claims C3 and C4: identical runs collapse or survive unbounded, as often as the law says; bounded, none collapses."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.churn import predict_point
from metronome.frames import NS_PER_S
from metronome.stats import find_collapse_ns, wilson_interval
from metronome.trace import Trace

NAME, EXPERIMENT = "metastability", "metastability"
_EVERY_PERIODS = 4  # of a run's line
_SURVIVED = "black"


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark; times x in s.

    Series "rho": y = share of the pool in use, per run. "collapse": x = when the run fell silent. "serving": y = share
    of a mode's runs still serving at x. "law": the same as predicted for the unbounded engine;
    "law_given_lifetimes": for these very runs, whose sessions lasted as long as they did. "share": y = share
    that survived to the end, with its 95 % Wilson interval.
    """
    rows: list[dict[str, object]] = []
    ends: dict[str, list[float]] = {}
    for point in trace.points.itertuples():
        one = trace.of(point.point_id)
        collapse_ns = find_collapse_ns(one.frames, point.period_ns)
        end_s = np.inf if collapse_ns is None else collapse_ns / NS_PER_S
        ends.setdefault(point.kv, []).append(end_s)
        base = {"kv": point.kv, "point_id": point.point_id}
        if collapse_ns is not None:
            rows.append(base | {"series": "collapse", "x": end_s})
        pool = one.pool[(one.pool.t_ns >= 0) & (one.pool.t_ns < point.duration_ns)]
        levels = pool.groupby(pool.t_ns // (_EVERY_PERIODS * point.period_ns)).tail(1)
        rho = levels.blocks_used / levels.blocks_total
        rows += [base | {"series": "rho", "x": t / NS_PER_S, "y": y} for t, y in zip(levels.t_ns, rho, strict=True)]
    duration_s = trace.points.duration_ns.iloc[0] / NS_PER_S
    grid = np.linspace(0, duration_s, 61)
    for kv, seconds in ends.items():
        rows += [{"kv": kv, "series": "serving", "x": x, "y": float(np.mean(np.array(seconds) > x))} for x in grid]
        survived = int(np.isinf(seconds).sum())
        low, high = wilson_interval(survived, len(seconds))
        share = {"y": survived / len(seconds), "low": low, "high": high}
        rows.append({"kv": kv, "series": "share", "x": duration_s} | share)
    for series, seconds in (("law", _law(trace)), ("law_given_lifetimes", _law_given_lifetimes(trace))):
        rows += [{"kv": "unbounded", "series": series, "x": x, "y": float(np.mean(seconds > x))} for x in grid]
    return pd.DataFrame(rows)


def _law(trace: Trace) -> np.ndarray:
    """When runs collapse by the law, in s."""
    point = trace.points[trace.points.kv == "unbounded"].iloc[0]
    return predict_point(point, _bounded_frames(trace), draws=1000).t_collapse_ns / NS_PER_S


def _law_given_lifetimes(trace: Trace) -> np.ndarray:
    """The same for these very runs: how long their sessions lasted is known."""
    bounded = _bounded_frames(trace)
    runs = trace.points[trace.points.kv == "unbounded"].itertuples()
    odds = [predict_point(run, bounded, draws=50, given_lifetimes=True) for run in runs]
    return np.concatenate([one.t_collapse_ns for one in odds]) / NS_PER_S


def _bounded_frames(trace: Trace) -> pd.DataFrame:
    bounded = trace.points[trace.points.kv != "unbounded"].point_id
    return trace.frames[trace.frames.point_id.isin(bounded)]


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 4.0))
    left, right = figure.subplots(2, 1, sharex=True, height_ratios=[5, 4])
    _draw_runs(left, marks)
    _draw_survival(right, marks)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    style.sign(figure, trace)
    return figure


def _draw_runs(ax: Axes, marks: pd.DataFrame) -> None:
    collapses = marks[marks.series == "collapse"].set_index("point_id").x
    labelled: set[str] = set()
    for (kv, point_id), run in marks[marks.series == "rho"].groupby(["kv", "point_id"]):
        dead = point_id in collapses
        kind = f"{kv}, {'collapses' if dead else 'survives'}"
        color = style.WINDOW if kv != "unbounded" else style.UNBOUNDED if dead else _SURVIVED
        lines = (0, (3, 1)) if kv != "unbounded" else "-" if dead else ":"
        width, order = (0.9, 3) if color == _SURVIVED else (0.5, 2)
        ax.plot(run.x, run.y, color=color, linewidth=width, zorder=order, linestyle=lines,
                label=None if kind in labelled else kind)  # fmt: skip
        labelled.add(kind)
        if dead:
            ax.plot(collapses[point_id], 1, color="black", marker="x", markersize=4, zorder=3)
    ax.axhline(1, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    ax.set_ylim(0, 1.08)
    ax.set_xlim(0, None)
    ax.set_ylabel("share of the pool in use, rho")
    ax.set_title("(a) every run; x: the engine falls silent")


def _draw_survival(ax: Axes, marks: pd.DataFrame) -> None:
    for kv, run in marks[marks.series == "serving"].groupby("kv"):
        bounded = kv != "unbounded"
        ax.plot(run.x, run.y, color=style.KV_STYLE[bounded]["color"], drawstyle="steps-post")
        at = run[run.y < 0.5].iloc[0] if (run.y < 0.5).any() else run.iloc[-1]
        ax.annotate(kv, (at.x, at.y), (-4, -4), textcoords="offset points", ha="right", va="top")
        share = marks[(marks.series == "share") & (marks.kv == kv)].iloc[0]
        ax.errorbar(share.x, share.y, [[share.y - share.low], [share.high - share.y]], elinewidth=1, capsize=2,
                    **(style.KV_STYLE[bounded] | {"linestyle": "none"}))  # fmt: skip
    for series, style_, label in (("law", "--", "by the law"), ("law_given_lifetimes", ":", "given these lifetimes")):
        law = marks[marks.series == series]
        ax.plot(law.x, law.y, color="black", linestyle=style_, linewidth=0.9, label=label)
    ax.set_ylim(0, 1.05)
    ax.set_xlim(0, None)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("share of runs still serving")
    ax.set_title("(b) survival; bars: 95 % Wilson")
    ax.legend(loc="lower left")
