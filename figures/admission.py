"""Claims C8 and C9: bounded, AIMD finds N*; unbounded, it walks into the wall, which growth-aware admission avoids."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures import style
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.service import judge, windows
from metronome.stats import find_death
from metronome.trace import Trace

NAME, EXPERIMENT = "admission", "admission"
ORDER = ("aimd", "fixed", "none", "growth")
TITLES = {"aimd": "AIMD", "fixed": "fixed at N*", "none": "no control", "growth": "growth-aware"}
_NEVER_MS = 1e5  # where a frame that never came is drawn
_MEANS = ("limit", "active", "late_share", "converged_windows")


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark; x in s since the start, at the end of a control window.

    Series "limit", "active": sessions. "p95": ms, of frames released in the window. "rho": most of the pool in use.
    "late_share". "collapse": x alone, with its cause. "mean": over the last third, `of` says of what.
    """
    rows: list[dict[str, object]] = []
    for point in ordered(trace).itertuples():
        one = trace.of(point.point_id)
        base = {"policy": point.policy, "kv": point.kv}
        table = windows(one).assign(p95=lambda t: t.p95_ns / NS_PER_MS)
        for series in ("limit", "active", "p95", "rho", "late_share"):
            rows += [
                base | {"series": series, "x": t / NS_PER_S, "y": y}
                for t, y in zip(table.t_ns, table[series], strict=True)
            ]
        if death := find_death(one.points.iloc[0], one.frames, one.pool):
            rows.append(base | {"series": "collapse", "x": death[0] / NS_PER_S, "of": death[1]})
        control = judge(one, float(point.n_star))
        rows += [base | {"series": "mean", "of": name, "y": getattr(control, name)} for name in _MEANS]
    return pd.DataFrame(rows)


def ordered(trace: Trace) -> pd.DataFrame:
    """Points as they are drawn: the bounded ones first."""
    keys = trace.points.assign(unbounded=trace.points.window.isna(), place=trace.points.policy.map(ORDER.index))
    return keys.sort_values(["unbounded", "place"])


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    cases = ordered(trace)
    figure = Figure(figsize=(style.COLUMN_IN, 0.95 * len(cases) + 0.8))
    axes = figure.subplots(len(cases), 3, sharex=True, sharey="col", squeeze=False)
    for letter, row, case in zip("abcdefgh", axes, cases.itertuples(), strict=False):
        own = marks[(marks.policy == case.policy) & (marks.kv == case.kv)]
        color = style.UNBOUNDED if case.unbounded else style.WINDOW
        _draw_case(row, own, color, case)
        style.title_row(row[0], letter, _title(own, case))
    for ax in axes[-1]:
        ax.set_xlabel("time (s)")
    for ax, label in zip(axes[len(cases) // 2], ("sessions", "p95 (ms, log)", "pool in use"), strict=True):
        ax.set_ylabel(label)
    deadline_ms = cases.deadline_ns.iloc[0] / NS_PER_MS
    axes[0, 1].text(0, 1.3 * deadline_ms, "deadline, target", fontsize=style.SMALL)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    style.sign(figure, trace)
    return figure


def _title(marks: pd.DataFrame, case: object) -> str:
    """Over the whole row: who is let in, and what becomes of it at last."""
    mean = marks[marks.series == "mean"].set_index("of").y
    late = f"{mean['active']:.0f} in at last, {100 * mean['late_share']:.1f} % late"
    return f"{TITLES[case.policy]}, {case.kv}: {late}"


def _draw_case(row: "np.ndarray", marks: pd.DataFrame, color: str, case: object) -> None:
    of = {series: group for series, group in marks.groupby("series")}
    sessions, latency, pool = row
    n_star, deadline_ms = float(case.n_star), case.deadline_ns / NS_PER_MS
    sessions.plot(of["active"].x, of["active"].y, color=color, label="sessions in")
    if np.isfinite(of["limit"].y).any():
        sessions.plot(of["limit"].x, of["limit"].y, color="black", linewidth=0.8, linestyle="--", label="limit")
    sessions.axhline(n_star, color=style.MUTED, linewidth=0.8, linestyle=":", label="N*")
    sessions.set_ylim(0, 2.2 * n_star)
    latency.plot(of["p95"].x, of["p95"].y.replace(np.inf, _NEVER_MS), color=color)
    latency.axhline(deadline_ms, color="black", linewidth=0.8)
    latency.axhline(case.target_fraction * deadline_ms, color="black", linewidth=0.8, linestyle=":")
    latency.set_yscale("log")
    latency.set_ylim(20, _NEVER_MS * 1.5)
    latency.set_yticks([100, 1000, 10_000, _NEVER_MS], ["100", "1,000", "10,000", "never"])
    latency.minorticks_off()
    pool.plot(of["rho"].x, of["rho"].y, color=color)
    pool.set_ylim(0, 1.08)
    if "collapse" in of:
        _mark_collapse(row, of["collapse"].iloc[0])


def _mark_collapse(row: "np.ndarray", death: pd.Series) -> None:
    for ax in row:
        ax.axvline(death.x, color="black", linewidth=0.8, linestyle="-.")
    row[2].text(death.x, 0.05, f" {death.of}", fontsize=style.SMALL)
