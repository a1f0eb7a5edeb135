"""Claim C5: rho(t) = rho0 + N r t. The line fitted to the first half of the fill says when the pool is full."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.cliff import predicted_s
from metronome.facts import tokens_of
from metronome.frames import NS_PER_S
from metronome.saturation import first_order_t_sat_ns
from metronome.stats import find_collapse_ns, fit_fill
from metronome.trace import Trace

NAME, EXPERIMENT = "saturation", "saturation"
_FIT_UNTIL = 0.5
_PREDICTIONS = {"exact": "block arithmetic", "first_order": "(1 - rho0) / (N r)", "fit": "fit to rho < 0.5"}
_STYLES = {
    "exact": {"color": "black", "marker": "D"},
    "first_order": {"color": style.MUTED, "marker": "^"},
    "fit": {"color": style.WINDOW, "marker": "o"},
}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark and N; times x in s.

    Series "rho": y = share of the pool in use, one sample per period. "rate": y = fitted rho per second, with its
    interval. "fit", "exact", "first_order": x = predicted t_sat, low and high where there is an interval, y = error in
    percent. "t_sat": x = when it came.
    """
    rows: list[dict[str, object]] = []
    for point in trace.points.sort_values("sessions").itertuples():
        one = trace.of(point.point_id)
        base = {"sessions": int(point.sessions)}
        real_ns = find_collapse_ns(one.frames, point.period_ns)
        if real_ns is None:
            raise ValueError(f"{point.point_id} did not collapse: lengthen workload.duration_s or add sessions")
        real_s = real_ns / NS_PER_S
        levels = one.pool[one.pool.t_ns >= 0].groupby(one.pool.t_ns // point.period_ns).tail(1)
        levels = levels[levels.t_ns < point.duration_ns]
        rho = levels.blocks_used / levels.blocks_total
        rows += [base | {"series": "rho", "x": t / NS_PER_S, "y": y} for t, y in zip(levels.t_ns, rho, strict=True)]
        rows.append(base | {"series": "t_sat", "x": real_s})
        fit = fit_fill(one.points.iloc[0], one.pool, _FIT_UNTIL)
        rates = {"y": fit.rate_per_ns, "low": fit.rate_low, "high": fit.rate_high}
        rows.append(base | {"series": "rate", "x": fit.rho0} | {k: v * NS_PER_S for k, v in rates.items()})
        line_ns = first_order_t_sat_ns(
            point.sessions, tokens_of(point), point.period_ns, point.num_blocks, point.block_size
        )
        low, middle, high = (t / NS_PER_S for t in (fit.t_sat_low_ns, fit.t_sat_ns, fit.t_sat_high_ns))
        predicted = {"exact": predicted_s(point), "first_order": line_ns / NS_PER_S, "fit": middle}
        for series, x in predicted.items():
            interval = {"low": low, "high": high} if series == "fit" else {}
            rows.append(base | {"series": series, "x": x, "y": 100 * (x / real_s - 1)} | interval)
    return pd.DataFrame(rows)


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 3.9))
    left, right = figure.subplots(2, 1, height_ratios=[5, 4])
    for sessions, one in marks.groupby("sessions"):
        _draw_fill(left, one, sessions)
    left.axhline(1, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    left.set_ylim(0, 1.12)
    left.set_xlim(0, None)
    left.set_xlabel("time (s)")
    left.set_ylabel("share of the pool in use, rho")
    left.set_title("(a) the fill, its line and its end (x)")
    left.plot([], [], color=style.UNBOUNDED, label="measured")
    left.plot([], [], color=style.WINDOW, linestyle="--", label="fitted to rho < 0.5, with its 95 % interval")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    _draw_errors(right, marks)
    style.sign(figure, trace)
    return figure


def _draw_fill(ax: Axes, marks: pd.DataFrame, sessions: int) -> None:
    of = {series: group for series, group in marks.groupby("series")}
    real_s, rate, fit = of["t_sat"].x.item(), of["rate"].iloc[0], of["fit"].iloc[0]
    ax.plot(of["rho"].x, of["rho"].y, color=style.UNBOUNDED)
    ends = np.array([0.0, fit.x])
    ax.plot(ends, rate.x + rate.y * ends, color=style.WINDOW, linestyle="--")
    ax.fill_betweenx([1.0, 1.03], fit.low, fit.high, color=style.WINDOW, alpha=0.4, linewidth=0)
    ax.plot(real_s, 1, color="black", marker="x", markersize=5, zorder=3)
    ax.annotate(f"N={sessions}", (real_s, 1), (0, 7), textcoords="offset points", ha="center")


def _draw_errors(ax: Axes, marks: pd.DataFrame) -> None:
    counts = sorted(marks.sessions.unique())
    for offset, (series, label) in zip((-0.2, 0.0, 0.2), _PREDICTIONS.items(), strict=True):
        one = marks[marks.series == series].set_index("sessions").loc[counts]
        x = np.arange(len(counts)) + offset
        if series == "fit":
            real = marks[marks.series == "t_sat"].set_index("sessions").loc[counts].x
            error = np.abs([100 * (one.low / real - 1) - one.y, 100 * (one.high / real - 1) - one.y])
            ax.errorbar(x, one.y, error, linestyle="none", elinewidth=0.8, label=label, **_STYLES[series])
        else:
            ax.plot(x, one.y, linestyle="none", label=label, **_STYLES[series])
    ax.axhline(0, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    ax.set_xticks(range(len(counts)), [f"N={n}" for n in counts])
    ax.set_xlim(-0.5, len(counts) - 0.5)
    ax.set_ylabel("error of $t_{sat}$ (%)")
    ax.set_title("(b) how well it was foretold")
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.25 * (high - low), high)  # room for the legend
    ax.legend(loc="lower left", ncols=3, fontsize=style.SMALL, columnspacing=0.8, handletextpad=0.2)
