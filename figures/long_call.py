"""Claim C13: with the bound a call has no border. Blocks, latency and perplexity against the length of the call."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures import style
from metronome.frames import NS_PER_MS
from metronome.stats import engine_latency_ns
from metronome.trace import Trace

NAME, EXPERIMENT = "long_call", "long_call"
_BIN_FRAMES = 10
_PANELS = (("blocks", "blocks\nheld"), ("latency", "frame latency\n(ms)"), ("perplexity", "perplexity\n(log)"))
_STYLES = {
    "anchor": {"color": style.WINDOW, "linestyle": "-"},
    "keep": {"color": style.UNBOUNDED, "linestyle": ":"},
    None: {"color": "black", "linestyle": "--"},
}
_LABELS = {
    "anchor": "4 sinks, anchored",
    "keep": "4 sinks, kept positions",
    None: "unbounded",
}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark: x = length of the call in tokens; series "blocks", "latency" (of ten frames), "perplexity"."""
    rows = []
    for point in trace.points.itertuples():
        one = trace.of(point.point_id)
        answered = one.frames[one.frames.done_ns.notna()].reset_index(drop=True)
        length = (answered.frame_idx + 1) * (point.tokens_in + point.tokens_out - 1)
        bins = answered.index // _BIN_FRAMES
        latency = pd.Series(engine_latency_ns(answered) / NS_PER_MS).groupby(bins).median()
        blocks = one.pool.blocks_used.groupby(one.pool.index // _BIN_FRAMES).max()
        nll = one.scores[one.scores.metric == "nll"]
        for series, x, y in (
            ("latency", length.groupby(bins).max(), latency),
            ("blocks", length.groupby(bins).max(), blocks),
            ("perplexity", nll.start + nll.num_tokens, np.exp(nll.value)),
        ):
            rows += [
                {"point_id": point.point_id, "series": series, "x": int(a), "y": float(b)}
                for a, b in zip(x, y, strict=True)
            ]
    return pd.DataFrame(rows)


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    figure = Figure(figsize=(style.COLUMN_IN, 3.5))
    axes = figure.subplots(3, 1, sharex=True)
    for ax, (series, label) in zip(axes, _PANELS, strict=True):
        for point in trace.points.itertuples():
            line = marks[(marks.point_id == point.point_id) & (marks.series == series)]
            positions = None if pd.isna(point.positions) else point.positions
            ax.plot(line.x, line.y, label=_LABELS[positions], **_STYLES[positions])
            if positions is None:
                ax.plot(line.x.iloc[-1], line.y.iloc[-1], color="black", marker="x", markersize=6, clip_on=False)
        ax.set_ylabel(label)
    for ax in axes[:2]:
        ax.set_ylim(0, None)
    axes[2].set_yscale("log")
    style.plain_log(axes[2].yaxis)
    bounded = trace.points[trace.points.window.notna()]
    axes[0].set_title(f"window {', '.join(sorted({str(w) for w in bounded.window}))}; x: the unbounded call ends")
    axes[2].set_xlabel("length of the call (tokens)")
    axes[2].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    style.sign(figure, trace, speech="dialogue, all its parts as hard")
    return figure
