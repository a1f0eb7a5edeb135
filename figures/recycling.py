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


def draw(trace: Trace) -> Figure:
    marks = points(trace)
    figure = Figure(figsize=(style.TEXT_IN, 2.5))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_latency(left, marks[marks.series == "frame"], trace.points.deadline_ns.iloc[0] / NS_PER_MS)
    for engine, line in marks[marks.series == "computed"].groupby("engine"):
        right.plot(line.x, line.y, drawstyle="steps-mid", **_look(engine))
    right.set_ylim(bottom=0)
    right.set_xlabel("frame")
    right.set_ylabel("tokens computed per frame, mean")
    right.set_title("(b) what the engine computes")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    figure.supxlabel(style.provenance(trace), fontsize=6, color=style.MUTED)
    return figure


def _look(engine: bool) -> dict[str, object]:
    return {"color": style.WINDOW} if engine else {"color": style.UNBOUNDED}


def _draw_latency(ax: Axes, marks: pd.DataFrame, deadline_ms: float) -> None:
    never_ms = 1.15 * max(float(marks.y[np.isfinite(marks.y)].max()), deadline_ms)
    for engine, group in marks.groupby("engine"):
        y = np.where(np.isfinite(group.y), group.y, never_ms)
        label = f"{group.kv.iloc[0]}, N={group.sessions.iloc[0]}"
        ax.plot(group.x, y, ".", markersize=2.5, label=label, **_look(engine))
        again = group.recycled.to_numpy(dtype=bool)
        if again.any():
            ax.plot(group.x[again], y[again], "x", markersize=4, color="black", label="a recycle")
    ax.axhline(deadline_ms, color=style.MUTED, linewidth=0.7, linestyle=":", label="deadline")
    ax.set_ylim(0, 1.05 * never_ms)
    ax.set_xlabel("time of the frame's release (s)")
    ax.set_ylabel("engine latency (ms)")
    ax.set_title("(a) every frame")
