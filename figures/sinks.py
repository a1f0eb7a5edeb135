"""Claim C10 and beyond: what attention sinks are worth, and where their keys must stand once the window has slid."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from metronome.stats import bootstrap_interval
from metronome.trace import Trace

NAME, EXPERIMENT = "sinks", "sink_ablation"
_SHOWN = ("window256+0-keep", "window256+4-keep", "window256+4-anchor", "unbounded")
_LABELS = {
    "window256+0-keep": "window 256, no sinks",
    "window256+4-keep": "4 sinks, kept positions",
    "window256+4-anchor": "4 sinks, anchored",
    "unbounded": "unbounded",
}
_STYLES = {
    "window256+0-keep": {"color": style.MUTED, "linestyle": "--", "marker": "^"},
    "window256+4-keep": {"color": style.UNBOUNDED, "linestyle": ":", "marker": "s"},
    "window256+4-anchor": {"color": style.WINDOW, "linestyle": "-", "marker": "o"},
    "unbounded": {"color": "black", "linestyle": "-", "marker": "d"},
}


def points(trace: Trace) -> pd.DataFrame:
    """One row per mark, with a 95 % interval over texts where there are several.

    Series "teacher": x = position of the segment, y = perplexity. "turn": x = border side (0 before, 1 past the trained
    context), y = perplexity of each turn's first tokens. "free": x = position in the continuation, y = perplexity under
    the unbounded model. "loop": y = longest loop in tokens.
    """
    scores = trace.scores.merge(trace.points[["point_id"]], on="point_id")
    border = _border(scores)
    rows = []
    for point_id, one in scores.groupby("point_id", sort=False):
        nll = one[one.metric == "nll"]
        for series in ("teacher", "free"):
            for start, group in nll[nll.task == series].groupby("start"):
                rows.append(_row(point_id, series, start, group, np.exp))
        turns = nll[nll.task == "turn"]
        for side, group in turns.groupby((turns.start >= border).astype(int)):
            rows.append(_row(point_id, "turn", side, group, np.exp))
        loops = one[one.metric == "longest_loop"]
        rows.append(_row(point_id, "loop", 0, loops, lambda x: x))
    return pd.DataFrame(rows)


def _border(scores: pd.DataFrame) -> int:
    """Where the trained context ends: the unbounded engine scored no further."""
    given = scores[(scores.point_id == "unbounded") & (scores.task == "teacher")]
    return int((given.start + given.num_tokens).max() + 1) // 1024 * 1024


def _row(point_id: str, series: str, x: int, group: pd.DataFrame, scale: object) -> dict[str, object]:
    per_text = (group.value * group.num_tokens).groupby(group.text).sum() / group.num_tokens.groupby(group.text).sum()
    values = per_text.to_numpy(dtype=float)
    low, high = bootstrap_interval(values)
    y, low, high = (float(scale(v)) for v in (values.mean(), low, high))
    return {"point_id": point_id, "series": series, "x": int(x), "y": y, "low": low, "high": high}


def draw(trace: Trace, marks: pd.DataFrame) -> Figure:
    """marks: `points` of the trace."""
    marks = marks[marks.point_id.isin(_SHOWN)]
    figure = Figure(figsize=(style.COLUMN_IN, 3.9))
    grid = figure.add_gridspec(2, 2, height_ratios=[5, 4])
    left, middle, right = (figure.add_subplot(grid[at]) for at in ((0, slice(None)), (1, 0), (1, 1)))
    _draw_lines(left, marks[marks.series == "teacher"])
    left.axvline(_border(trace.scores), color=style.MUTED, linewidth=0.7, linestyle=":")
    left.annotate("trained\ncontext ends", (_border(trace.scores), left.get_ylim()[1]), (-3, -2), ha="right", va="top",
                  textcoords="offset points", fontsize=style.SMALL, color=style.MUTED)  # fmt: skip
    half = _border(trace.scores) // 2
    left.set_xticks(range(0, int(left.get_xlim()[1]) + half, half))
    left.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    left.set_xlabel("position in the text (tokens)")
    left.set_ylabel("perplexity (log)")
    left.set_title("(a) the text is given")
    _draw_turns(middle, marks[marks.series == "turn"])
    middle.set_ylabel("perplexity (log)")
    _draw_lines(right, marks[marks.series == "free"])
    right.set_xticks(sorted(set(marks[marks.series == "free"].x)))
    right.set_xlabel("position in it (tokens)")
    right.set_title("(c) running free")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    style.sign(figure, trace, speech="dialogue, bars: 95 % over texts")
    return figure


def _draw_lines(ax: Axes, marks: pd.DataFrame) -> None:
    for point_id in _SHOWN:
        line = marks[marks.point_id == point_id]
        error = np.abs([line.y - line.low, line.high - line.y])
        ax.errorbar(line.x, line.y, error, elinewidth=0.6, label=_LABELS[point_id], **_STYLES[point_id])
    ax.set_yscale("log")
    style.plain_log(ax.yaxis)


def _draw_turns(ax: Axes, marks: pd.DataFrame) -> None:
    for offset, point_id in zip(np.linspace(-0.24, 0.24, len(_SHOWN)), _SHOWN, strict=True):
        line = marks[marks.point_id == point_id]
        error = np.abs([line.y - line.low, line.high - line.y])
        ax.errorbar(line.x + offset, line.y, error, **(_STYLES[point_id] | {"linestyle": "none"}))
    ax.set_yscale("log")
    style.plain_log(ax.yaxis)
    ax.set_xticks([0, 1], ["within", "past"])
    ax.set_xlim(-0.5, 1.5)
    ax.set_xlabel("the trained context")
    ax.set_title("(b) first tokens of turns")
