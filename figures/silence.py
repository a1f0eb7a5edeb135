"""Claim C2: the collapse is silent. What the front end reports stays healthy; what the user hears stops."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.stats import find_collapse_ns, frontend_latency_ns, quantile
from metronome.trace import Trace

NAME, EXPERIMENT = "silence", "cliff_sweep"
_BINS_MS = {name: np.geomspace(10, 10_000, 37) for name in ("ttft", "inter_token")}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark of the unbounded point that collapsed with the most sessions.

    Series over x = time in s, per period: "frontend_p99" (ms), "frontend_miss" (share of frames not shown by the
    deadline), "spoken" (frames with output per second); "collapse" (x in s). Histograms over x = lower edge in ms,
    y = count: "ttft_before", "ttft_after", "inter_token_before", "inter_token_after" the collapse.
    """
    one = _collapsed(trace)
    point = one.points.iloc[0]
    collapse_ns = find_collapse_ns(one.frames, point.period_ns)
    rows = [{"series": "collapse", "x": collapse_ns / NS_PER_S, "y": np.nan}]
    for tick, frames in one.frames.groupby(one.frames.release_ns // point.period_ns):
        rows += _tick_rows(tick * point.period_ns / NS_PER_S, frames, point)
    for name, edges in _BINS_MS.items():
        rows += _histogram_rows(name, edges, one.pool, collapse_ns)
    return pd.DataFrame(rows)


def _collapsed(trace: Trace) -> Trace:
    """The unbounded point with the most sessions that collapsed."""
    for point in trace.points[trace.points.kv == "unbounded"].sort_values("sessions", ascending=False).itertuples():
        one = trace.of(point.point_id)
        if find_collapse_ns(one.frames, point.period_ns) is not None:
            return one
    raise ValueError("no unbounded point collapsed: nothing to show; lengthen workload.duration_s or add sessions")


def _tick_rows(t_s: float, frames: pd.DataFrame, point: pd.Series) -> list[dict[str, object]]:
    latency = frontend_latency_ns(frames)
    deadline = (frames.deadline_ns - frames.release_ns).to_numpy(dtype=float)
    spoken = (frames.tokens_out > 0).sum() / (point.period_ns / NS_PER_S)
    return [
        {"series": "frontend_p99", "x": t_s, "y": quantile(latency, 0.99) / NS_PER_MS},
        {"series": "frontend_miss", "x": t_s, "y": float((latency > deadline).mean())},
        {"series": "spoken", "x": t_s, "y": float(spoken)},
    ]


def _histogram_rows(name: str, edges: np.ndarray, pool: pd.DataFrame, collapse_ns: float) -> list[dict[str, object]]:
    rows = []
    # One sample's grace: what the engine observed last is handed over at the first sample after it.
    after = pool.t_ns > collapse_ns + pool.t_ns.diff().max()
    for label, part in (("before", pool[~after]), ("after", pool[after])):
        values = part[f"{name}_ms"].explode().dropna().to_numpy(dtype=float)
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        rows += [{"series": f"{name}_{label}", "x": x, "y": float(y)} for x, y in zip(edges[:-1], counts, strict=True)]
    return rows


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    one = _collapsed(trace)
    figure = Figure(figsize=(style.COLUMN_IN, 4.4))
    grid = figure.add_gridspec(4, 2, height_ratios=[4, 3, 4, 5])
    _draw_time([figure.add_subplot(grid[row, :]) for row in range(3)], marks, one.points.iloc[0])
    first, between = (figure.add_subplot(grid[3, column]) for column in range(2))
    _draw_histogram(first, marks, "ttft", "time to first token (ms)")
    _draw_histogram(between, marks, "inter_token", "inter-token latency (ms)")
    style.title_row(first, "b", "what the engine observed before and after it")
    first.set_ylabel("observations")
    style.sign(figure, one)
    return figure


def _draw_time(axes: list[Axes], marks: pd.DataFrame, point: pd.Series) -> None:
    deadline_ms = point.deadline_ns / NS_PER_MS
    collapse_s = marks[marks.series == "collapse"].x.item()
    panels = (
        ("frontend_p99", "front-end\np99 (ms)", style.WINDOW, (0, 1.15 * deadline_ms)),
        ("frontend_miss", "missed there\n(share)", style.WINDOW, (-0.05, 1.05)),
        ("spoken", "frames with\noutput per s", style.UNBOUNDED, (0, None)),
    )
    for ax, (series, label, color, limits) in zip(axes, panels, strict=True):
        line = marks[marks.series == series]
        ax.plot(line.x, line.y, color=color, marker="o", markersize=2)
        ax.axvline(collapse_s, color="black", linewidth=0.7, linestyle=":")
        ax.set_ylabel(label)
        ax.set_ylim(*limits)
        ax.tick_params(labelbottom=ax is axes[-1])
    axes[0].axhline(deadline_ms, color=style.MUTED, linewidth=0.7, linestyle="--")
    axes[0].annotate("deadline", (0, deadline_ms), (0, -8), textcoords="offset points", fontsize=style.SMALL,
                     color=style.MUTED)  # fmt: skip
    axes[0].set_title(f"(a) unbounded, N={point.sessions}: reported, and said")
    axes[2].annotate("last token", (collapse_s, 0), (3, 10), textcoords="offset points")
    axes[2].set_xlabel("time (s)")


def _draw_histogram(ax: Axes, marks: pd.DataFrame, name: str, label: str) -> None:
    edges = _BINS_MS[name]
    for part, color, hatch in (("before", style.WINDOW, None), ("after", style.UNBOUNDED, "///")):
        counts = marks[marks.series == f"{name}_{part}"].y
        text = f"{part}: {int(counts.sum())}"
        ax.bar(edges[:-1], counts, np.diff(edges), align="edge", color=color, hatch=hatch, label=text)
    ax.set_xscale("log")
    ax.set_xticks(ticks := (10, 100, 1000), [f"{t:,}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel(label)
    ax.set_ylim(0, 1.6 * max(1, ax.get_ylim()[1]))
    ax.legend(loc="upper left", fontsize=style.SMALL, handlelength=1, borderaxespad=0)
