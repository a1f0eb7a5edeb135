"""A figure is load, points, draw; what is compared is points."""

import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic import facts, fill

from figures import style
from figures.__main__ import EXPECTED, FIGURES, compare_points, main
from metronome import trace

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "data" / "golden"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """All figures from the golden traces, twice, each time by a process of its own: (folder, what it printed)."""
    folders = [tmp_path_factory.mktemp("drawn") for _ in range(2)]
    command = [sys.executable, "-m", "figures", "--data", str(GOLDEN), "--check", "--out"]
    runs = [subprocess.Popen([*command, str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for out in folders]
    return [(out, run.communicate()[0]) for out, run in zip(folders, runs, strict=True)]


@pytest.mark.parametrize("name", FIGURES)
def test_golden_traces_give_the_expected_points(name, drawn):
    num_points = len(pd.read_csv(EXPECTED / f"{name}.csv"))
    assert all(f"{name}: all {num_points} points as expected" in printed for _, printed in drawn)


@pytest.mark.parametrize("name", FIGURES)
def test_two_drawings_of_one_trace_are_the_same_bytes(name, drawn):
    for suffix in ("pdf", "png"):
        one, two = ((out / f"{name}.{suffix}").read_bytes() for out, _ in drawn)
        assert one == two and len(one) > 5000


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_and_is_read_there(name):
    style.use()
    module = FIGURES[name]
    figure = module.draw(trace.read(GOLDEN, module.EXPERIMENT), pd.read_csv(EXPECTED / f"{name}.csv"))
    figure.set_dpi(matplotlib.rcParams["savefig.dpi"])
    figure.draw_without_rendering()
    assert figure.get_figwidth() == style.COLUMN_IN
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= style.SMALL
    assert "engine" in figure.get_supxlabel() and "cores" in figure.get_supxlabel()
    width, height = figure.bbox.size
    ticks = {label for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    boxes = {text.get_text(): text.get_window_extent() for text in texts if text not in ticks}
    boxes["all"] = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    for name, box in boxes.items():
        assert -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1, f"{name} is cut off"


@pytest.fixture
def run(tmp_path):
    with trace.TraceWriter(tmp_path, "run") as writer:
        for sessions in (2, 4):
            fill(writer.point(facts(point_id=f"unbounded-n{sessions}", sessions=sessions)), stall_at=12)
            bound = {"kv": "window256+4", "window": 256, "sinks": 4, "positions": "anchor"}
            fill(writer.point(facts(point_id=f"window256+4-n{sessions}", sessions=sessions, **bound)))
    return tmp_path


@pytest.mark.parametrize("name", ["cliff", "silence"])
def test_a_figure_draws_from_any_run_of_its_experiment(name, run):
    data = trace.read(run, "cliff_sweep")
    assert isinstance(FIGURES[name].draw(data, FIGURES[name].points(data)), Figure)


def test_the_cliff_shows_what_happened(run):
    points = FIGURES["cliff"].points(trace.read(run, "cliff_sweep"))
    stalled = points[(points.series == "time") & (points.kv == "unbounded") & (points.sessions == 2)]
    assert stalled.y.tolist() == [200.0] * 12 + [np.inf] * 8
    assert np.isfinite(points[(points.series == "time") & points.bounded].y).all()
    assert points[points.series == "t_sat"].kv.unique().tolist() == ["unbounded"]


def test_silence_counts_what_is_said_and_what_the_engine_saw(run):
    points = FIGURES["silence"].points(trace.read(run, "cliff_sweep")).set_index("series")
    assert points.loc["spoken"].y.tolist() == [2.0] * 12 + [0.0] * 8
    assert points.loc["frontend_miss"].y.max() == 0.0
    assert points.loc["ttft_before"].y.sum() == 60 and points.loc["ttft_after"].y.sum() == 0


@pytest.mark.parametrize("change", ["value", "row", "label"])
def test_a_difference_in_points_is_found(run, change):
    points = FIGURES["cliff"].points(trace.read(run, "cliff_sweep"))
    other = points.copy()
    if change == "value":
        other.loc[3, "y"] *= 1.001
    elif change == "row":
        other = other.iloc[:-1]
    else:
        other.loc[3, "kv"] = "other"
    assert compare_points(points, other)
    assert not compare_points(points, points.copy())


def test_a_run_without_a_collapse_says_what_to_change(tmp_path, capsys):
    with trace.TraceWriter(tmp_path, "run") as writer:
        fill(writer.point(facts()))
    assert main(["silence", "--data", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "lengthen workload.duration_s or add sessions" in capsys.readouterr().err


def test_missing_data_names_the_command_that_makes_it(tmp_path, capsys):
    assert main(["cliff", "--data", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "python -m experiments.run +exp=cliff_sweep" in capsys.readouterr().err
