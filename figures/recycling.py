"""Claim C12: who recycles sessions pays for what they keep, again and again; the window in the engine does not."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.stats import engine_latency_ns, recycled_frames
from metronome.trace import Trace

NAME, EXPERIMENT = "recycling", "recycling"


def points(trace: Trace) -> pd.DataFrame:
    """One row per frame (series "frame": x in s, y = latency in ms, inf where it never came) and per token count
    (series "computed": x = frame number, y = mean tokens computed over sessions).
    """
    parts = []
    for point in trace.points.itertuples():
        frames = trace.of(point.point_id).frames
        base = {"kv": point.kv, "engine": point.kv.startswith("window"), "sessions": point.sessions}
        latency = pd.DataFrame({"x": frames.release_ns / NS_PER_S, "y": engine_latency_ns(frames) / NS_PER_MS})
        latency = latency.assign(series="frame", recycled=recycled_frames(point, frames))
        answered = frames[frames.done_ns.notna()]
        computed = (answered.tokens_in + answered.tokens_out - 1).astype(float).groupby(answered.frame_idx).mean()
        rows = pd.DataFrame({"x": computed.index.astype(float), "y": computed.to_numpy()})
        parts += [latency.assign(**base), rows.assign(series="computed", recycled=False, **base)]
    return pd.concat(parts, ignore_index=True)


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    sizes = sorted(set(marks.sessions))
    figure = Figure(figsize=(style.COLUMN_IN, 1.4 * (len(sizes) + 1) + 0.5))
    panels = figure.subplots(len(sizes) + 1, 1, squeeze=False)[:, 0]
    deadline_ms = trace.points.deadline_ns.iloc[0] / NS_PER_MS
    for letter, ax, size in zip("abcdef", panels, sizes, strict=False):
        _draw_latency(ax, marks[(marks.series == "frame") & (marks.sessions == size)], deadline_ms)
        ax.set_title(f"({letter}) every frame, N={size}")
        ax.set_ylabel("engine latency\n(ms, log)")
    _draw_computed(panels[-1], marks[(marks.series == "computed") & (marks.sessions == sizes[0])])
    panels[-1].set_title(f"({'abcdefg'[len(sizes)]}) tokens computed, N={sizes[0]}")
    handles = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=4, columnspacing=0.8)
    style.sign(figure, trace)
    return figure


def _draw_computed(ax: Axes, marks: pd.DataFrame) -> None:
    for engine, line in marks.groupby("engine"):
        ax.plot(line.x, line.y, drawstyle="steps-mid", **_look(bool(engine)))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("frame")
    ax.set_ylabel("tokens per frame,\nmean of sessions")


def _look(engine: bool) -> dict[str, object]:
    return {"color": style.WINDOW} if engine else {"color": style.UNBOUNDED, "linestyle": "--"}


def _draw_latency(ax: Axes, marks: pd.DataFrame, deadline_ms: float) -> None:
    finite = marks.y[np.isfinite(marks.y)]
    top_ms = 1.5 * max(float(finite.max()), deadline_ms)
    never_ms = top_ms if len(finite) < len(marks) else np.inf
    for engine, group in marks.groupby("engine"):
        y = np.where(np.isfinite(group.y), group.y, never_ms)
        mark = {"marker": "o", "markersize": 2, "fillstyle": "full" if engine else "none", "markeredgewidth": 0.6}
        ax.plot(group.x, y, label=group.kv.iloc[0], **(_look(bool(engine)) | mark | {"linestyle": "none"}))
        again = group.recycled.to_numpy(dtype=bool)
        if again.any():
            ax.plot(group.x[again], y[again], "x", markersize=4, color="black", label="a recycle")
    ax.axhline(deadline_ms, color=style.MUTED, linewidth=0.7, linestyle=":", label="deadline")
    ax.set_yscale("log")
    ax.set_ylim(float(finite.min()) / 1.5, 1.3 * top_ms)
    ticks = {t: f"{t:,}" for t in (100, 300, 1000, 3000, 10_000, 30_000) if finite.min() / 1.5 < t < top_ms / 1.2}
    ticks |= {never_ms: "never"} if never_ms < np.inf else {}
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.minorticks_off()
    ax.set_xlabel("release of the frame (s)")
