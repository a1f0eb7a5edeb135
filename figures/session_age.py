"""What would be taken for the cost of the KV cache: vLLM 0.32's bookkeeping of the audio that a session has heard."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures import style
from metronome.frames import NS_PER_MS
from metronome.stats import engine_latency_ns
from metronome.trace import Trace

NAME, EXPERIMENT = "session_age", "session_age"
_MEDIAN_OF = 10  # frames: one alone is as late as the machine is busy


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark: medians of ten frames (x = the last one's number, y in ms)."""
    rows = []
    for point in trace.points.itertuples():
        frames = trace.of(point.point_id).frames
        for block, group in frames.groupby(frames.frame_idx // _MEDIAN_OF):
            y = float(np.median(engine_latency_ns(group))) / NS_PER_MS
            rows.append({"fixes": bool(point.stream_fixes), "x": int((block + 1) * _MEDIAN_OF), "y": y})
    return pd.DataFrame(rows)


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 2.4))
    ax = figure.subplots()
    looks = {
        True: {"color": style.WINDOW, "label": "with the stream fixes"},
        False: {"color": style.UNBOUNDED, "linestyle": "--", "label": "vLLM 0.32 as it is"},
    }
    for fixes, line in marks.groupby("fixes"):
        ax.plot(line.x, line.y, **looks[bool(fixes)])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("frames of 0.2 s that the session has said")
    ax.set_ylabel("engine latency (ms)")
    ax.set_title(f"one session, {trace.points.kv.iloc[0]}: the same KV cache")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    style.sign(figure, trace)
    return figure
