"""Claims C1 and C4: unbounded, latency is flat and then one step to never; bounded, the same load goes on."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.facts import bound_of, seed_of, tokens_of, workload_of
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.saturation import predict_t_sat_ns
from metronome.stats import engine_latency_ns, quantile
from metronome.trace import Trace

NAME, EXPERIMENT = "cliff", "cliff_sweep"


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark: series "time" (x in s, y = p50 latency in ms), "load" (x = N, y = p95), "t_sat" (x in s)."""
    rows = []
    for point in trace.points.itertuples():
        frames = trace.of(point.point_id).frames
        base = {"kv": point.kv, "bounded": point.kv != "unbounded", "sessions": point.sessions}
        for _, group in frames.groupby("frame_idx"):
            latency = quantile(engine_latency_ns(group), 0.5)
            rows.append(base | {"series": "time", "x": group.release_ns.median() / NS_PER_S, "y": latency / NS_PER_MS})
        p95 = quantile(engine_latency_ns(frames), 0.95)
        rows.append(base | {"series": "load", "x": point.sessions, "y": p95 / NS_PER_MS})
        if (t_sat := predicted_s(point)) is not None:
            rows.append(base | {"series": "t_sat", "x": t_sat, "y": np.nan})
    return pd.DataFrame(rows)


def predicted_s(point: object) -> float | None:
    """When the block arithmetic says the pool is full; only the unbounded engine's ever is."""
    if bound_of(point) is not None or point.turns_vary:
        return None
    sessions = workload_of(point).make_sessions(point.sessions, seed_of(point))
    t_sat = predict_t_sat_ns(sessions, tokens_of(point), point.num_blocks, point.block_size)
    return None if t_sat is None else t_sat / NS_PER_S


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    deadline_ms = trace.points.deadline_ns.iloc[0] / NS_PER_MS
    figure = Figure(figsize=(style.COLUMN_IN, 3.6))
    above, below = figure.subplots(2, 1, height_ratios=[5, 4])
    finite = marks.y[np.isfinite(marks.y)]
    never_ms = 10 ** np.ceil(np.log10(max(finite.max(), deadline_ms)) + 0.6)
    _draw_time(above, marks, never_ms)
    _draw_load(below, marks, never_ms)
    for ax in (above, below):
        _draw_scale(ax, never_ms, finite.min(), deadline_ms)
        ax.set_ylabel("engine latency (ms, log)")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    style.sign(figure, trace)
    return figure


def _draw_scale(ax: Axes, never_ms: float, low_ms: float, deadline_ms: float) -> None:
    ax.set_yscale("log")
    ax.set_ylim(low_ms / 2, never_ms * 1.6)
    ticks = [t for t in (10, 100, 1000, 10_000) if low_ms / 2 < t < never_ms]
    ax.set_yticks([*ticks, never_ms], [*(f"{t:,}" for t in ticks), "never"])
    ax.minorticks_off()
    ax.axhline(deadline_ms, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)
    ax.annotate("deadline", (1, deadline_ms), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", fontsize=style.SMALL, color=style.MUTED)  # fmt: skip


def _draw_time(ax: Axes, marks: pd.DataFrame, never_ms: float) -> None:
    series = marks[marks.series == "time"]
    most = series.sessions.max()
    bounded = series[series.bounded & (series.sessions == most)]
    ax.plot(bounded.x, bounded.y, color=style.WINDOW, linestyle="--", label=f"{bounded.kv.iloc[0]}, N={most}")
    predicted = marks[marks.series == "t_sat"].set_index("sessions").x
    for sessions, line in series[~series.bounded].groupby("sessions"):
        y = np.where(np.isfinite(line.y), line.y, never_ms)
        label = "unbounded" if sessions == most else None
        ax.plot(line.x, y, color=style.UNBOUNDED, drawstyle="steps-post", linewidth=1, label=label)
        never = line.x[~np.isfinite(line.y)]
        at, offset = ((never.min(), never_ms), (2, 3)) if len(never) else ((line.x.iloc[-1], y[-1]), (-12, -9))
        ax.annotate(f"N={sessions}", at, offset, textcoords="offset points", fontsize=style.SMALL)
        if sessions in predicted:
            ax.axvline(predicted[sessions], **style.PREDICTED, zorder=0)
    ax.plot([], [], **style.PREDICTED, label="predicted $t_{sat}$")
    ax.set_xlabel("time of the frame's release (s)")
    ax.set_title("(a) median of the frame over sessions")


def _draw_load(ax: Axes, marks: pd.DataFrame, never_ms: float) -> None:
    for bounded, line in marks[marks.series == "load"].groupby("bounded"):
        y = np.where(np.isfinite(line.y), line.y, never_ms)
        ax.plot(line.x, y, **style.KV_STYLE[bounded])
        ax.annotate(line.kv.iloc[0], (line.x.iloc[-1], y[-1]), (0, -11), textcoords="offset points", ha="right")
    ax.set_xlabel("concurrent sessions, N")
    ax.set_title("(b) 95th percentile of all frames of a run")
