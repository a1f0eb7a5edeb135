"""One look for all figures: readable in print at column width and in grey, the same bytes from the same points."""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from metronome.trace import Trace

COLUMN_IN = 3.33  # width of a column of a two-column paper: every figure is drawn as large as it is printed
SMALL = 6  # points: what stands inside a panel, and nothing is smaller
# Okabe and Ito: told apart without colour vision. In grey, lines differ in dashes and marks in shape.
UNBOUNDED, WINDOW, MUTED = "#d55e00", "#0072b2", "#666666"
PREDICTED = {"color": "black", "linewidth": 0.8, "linestyle": (0, (1, 2))}
KV_STYLE = {
    True: {"color": WINDOW, "marker": "o", "linestyle": "-"},  # bounded
    False: {"color": UNBOUNDED, "marker": "s", "linestyle": "-"},
}
_CODEC = "real speech as codec load"
_LINE_CHARS = 72  # of SMALL letters in a column


def use() -> None:
    matplotlib.use("agg")
    matplotlib.rcParams.update(
        {
            "font.size": 7,
            "axes.titlesize": 7,
            "axes.labelsize": 7,
            "legend.fontsize": 6.5,
            "xtick.labelsize": 6.5,
            "ytick.labelsize": 6.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "lines.linewidth": 1.1,
            "lines.markersize": 3,
            "legend.frameon": False,
            "legend.handlelength": 1.8,
            "legend.columnspacing": 1.2,
            "hatch.linewidth": 0.5,
            "pdf.fonttype": 42,
            "savefig.dpi": 200,
            "figure.constrained_layout.use": True,
        }
    )


def provenance(trace: Trace) -> str:
    """What the face of a figure must say: engine and machine; then model, weights and what the speech is to it."""
    point = trace.points.iloc[0]
    engine = {"vllm": "real vLLM engine"}.get(point.engine, f"{point.engine} engine")
    if trace.points.model.nunique() > 1:  # then every panel says its own
        return f"{engine}, {point.hardware}\n{point.engine_dtype}; real speech, as audio where the model hears it"
    weights = "real weights" if point.weights == "real" else "tiny random weights"
    numbers = weights if pd.isna(point.engine_dtype) else f"{weights}, {point.engine_dtype}"
    model = f"{point.model} ({numbers})"
    speech = _CODEC if pd.isna(point.stream_fixes) else "real speech as audio"
    return f"{engine}, {point.hardware}\n{model}; {speech}"


def sign(figure: Figure, trace: Trace, speech: str | None = None) -> None:
    """Write under a figure where it comes from; speech: what was said, where it was no codec's load."""
    text = provenance(trace)
    if speech is not None:
        text = text.replace(_CODEC, speech)
    lines = [textwrap.fill(line, _LINE_CHARS, break_on_hyphens=False) for line in text.splitlines()]
    figure.supxlabel("\n".join(lines), fontsize=SMALL, color=MUTED)


def title_row(ax: Axes, letter: str, text: str) -> None:
    """A title over more panels than the first, which the layout must not make room for in that one."""
    ax.set_title(f"({letter})")
    offset = (12, matplotlib.rcParams["axes.titlepad"])
    ax.annotate(text, (0, 1), offset, "axes fraction", "offset points", va="baseline").set_in_layout(False)


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with plain numbers, where they can be told apart."""
    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low)
    steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.6 else (1,)
    ticks = [s * 10.0**e for e in range(-3, 7) for s in steps if low <= s * 10.0**e <= high]
    axis.set_ticks(ticks, [f"{t:,.10g}" for t in ticks])
    axis.set_ticks([], minor=True)


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """PDF and PNG, laid out alike, without the date that would make two equal figures differ."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.pdf", out / f"{name}.png"]
    figure.savefig(paths[1], metadata={"Software": None})
    figure.set_layout_engine("none")  # it takes as long as drawing: once is enough
    figure.savefig(paths[0], metadata={"CreationDate": None, "ModDate": None})
    return paths
