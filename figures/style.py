"""One look for all figures: readable in print at column width and in grey, the same bytes from the same points."""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from metronome.trace import Trace

COLUMN_IN, TEXT_IN = 3.5, 7.2  # widths of a paper's column and of its text
UNBOUNDED, WINDOW, MUTED = (
    "#d55e00",
    "#0072b2",
    "#777777",
)  # Okabe and Ito: told apart without colour vision, and in grey
PREDICTED = {"color": "black", "linewidth": 0.8, "linestyle": (0, (1, 2))}
KV_STYLE = {
    True: {"color": WINDOW, "marker": "o", "linestyle": "-"},  # bounded
    False: {"color": UNBOUNDED, "marker": "s", "linestyle": "-"},
}


def use() -> None:
    matplotlib.use("agg")
    matplotlib.rcParams.update(
        {
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "legend.fontsize": 7,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "lines.linewidth": 1.2,
            "lines.markersize": 3,
            "legend.frameon": False,
            "pdf.fonttype": 42,
            "savefig.dpi": 200,
            "figure.constrained_layout.use": True,
        }
    )


def provenance(trace: Trace) -> str:
    """What the face of a figure must say: engine, model, weights, machine, and what the speech is to the model."""
    point = trace.points.iloc[0]
    engine = {"vllm": "real vLLM engine"}.get(point.engine, f"{point.engine} engine")
    if trace.points.model.nunique() > 1:  # then every panel says its own
        return f"{engine}, {point.engine_dtype}, {point.hardware}; real speech, as audio where the model hears it"
    weights = "real weights" if point.weights == "real" else "tiny random weights"
    numbers = weights if pd.isna(point.engine_dtype) else f"{weights}, {point.engine_dtype}"
    model = f"{point.model} ({numbers})"
    speech = "real speech as codec load" if pd.isna(point.stream_fixes) else "real speech as audio"
    return f"{engine}, {model}, {point.hardware}; {speech}"


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """PDF and PNG, without the date that would make two equal figures differ."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.pdf", out / f"{name}.png"]
    figure.savefig(paths[0], metadata={"CreationDate": None, "ModDate": None})
    figure.savefig(paths[1], metadata={"Software": None})
    return paths
