"""The experiments on texts, in small, on the real engine: their machinery, not their findings."""

import math

import pytest
from command import run_experiment
from matplotlib.figure import Figure

from figures import long_call
from metronome import trace

pytestmark = pytest.mark.engine


def test_the_sink_ablation_scores_all_three_tasks(tmp_path):
    manifest, printed = run_experiment(
        tmp_path / "run",
        "+exp=sink_ablation",
        "ablation.text_dir=data/text",
        "ablation.texts=[timon-of-athens]",
        "ablation.trained_len=256",
        "ablation.segment=64",
        "ablation.prompt_tokens=64",
        "ablation.continue_tokens=64",
        "ablation.continuations=2",
        "ablation.bounds=[{window: 64, sinks: 4, positions: anchor}]",
    )
    scores = trace.read(tmp_path / "run", "sink_ablation").scores
    bounded, unbounded = (scores[scores.point_id == p] for p in ("window64+4-anchor", "unbounded"))
    teacher = bounded[bounded.task == "teacher"]
    assert teacher.start.tolist() == 2 * [64 * i for i in range(8)] and teacher.num_tokens.sum() == 2 * 511
    assert unbounded[unbounded.task == "teacher"].num_tokens.sum() == 2 * 255  # it ends at its border
    # While everything still fits the window, the bound changes nothing.
    first = [one[(one.task == "teacher") & (one.start == 0)].value.iloc[0] for one in (bounded, unbounded)]
    assert first[0] == pytest.approx(first[1], abs=0.35) and 1 < math.exp(first[0]) < 500
    assert set(bounded.task) == {"teacher", "turn", "free"}
    assert {"nll", "distinct_2", "distinct_4", "longest_loop"} == set(bounded[bounded.task == "free"].metric)
    assert [p["point_id"] for p in manifest["points"]] == ["window64+4-anchor", "unbounded"]
    assert "window64+4-anchor" in printed


def test_a_long_call_outlives_the_border_of_a_stock_engine(tmp_path):
    manifest, _ = run_experiment(
        tmp_path / "run",
        "+exp=long_call",
        "long_call.text_dir=data/text",
        "long_call.num_tokens=2400",
        "long_call.border=1024",
        "long_call.bounds=[{window: 256, sinks: 4, positions: anchor}]",
        "engine.num_blocks=36",  # 1,120 tokens: the call is twice as long as its pool
        "engine.max_model_len=100000",
        "engine.max_num_batched_tokens=256",
    )
    bounded, unbounded = manifest["points"]
    assert bounded["ended"] in ("ok", "late") and bounded["tokens"] == 9 * 249
    assert bounded["blocks"][1] <= 1 + (255 + 246 + 31) // 32 + 1
    assert unbounded["tokens"] <= 1024 + 249
    assert unbounded["ended"] in ("max_len", "lost", "engine_dead")
    data = trace.read(tmp_path / "run", "long_call")
    assert set(data.frames[data.frames.point_id == bounded["point_id"]].tokens_out) == {4}
    points = long_call.points(data)
    blocks = points[(points.series == "blocks") & (points.point_id == bounded["point_id"])]
    assert blocks.y.max() == bounded["blocks"][1]
    assert isinstance(long_call.draw(data, long_call.points(data)), Figure)
