"""The README's first screen is what the committed traces say."""

import json
import re
from pathlib import Path

import pytest

from experiments import catalogue
from figures import claims, cliff, style
from figures.__main__ import FIGURES
from metronome import stats, trace

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if "| `+exp=" in line]


@pytest.fixture(scope="module")
def golden():
    return trace.read(ROOT / "data" / "golden", "cliff_sweep")


def test_the_claim_is_what_the_traces_say(golden):
    bounded = golden.of("window256+4-n12").frames
    assert f"{(bounded.status == 'ok').sum()} of {len(bounded)} frames on time" in README
    unbounded = golden.of("unbounded-n12").frames
    answered = unbounded[unbounded.done_ns.notna()]
    assert f"median frame latency of {stats.quantile(stats.engine_latency_ns(answered), 0.5) / 1e9:.1f} s" in README


def test_every_collapse_is_predicted_as_closely_as_claimed(golden):
    for point in golden.points.itertuples():
        result = stats.summarise(golden.of(point.point_id))
        if result.t_collapse_s is not None:
            assert abs(result.t_collapse_s - cliff.predicted_s(point)) < 0.2


def test_every_figure_stands_in_the_table_with_its_experiment_and_minutes():
    minutes = {entry.name: entry.minutes for entry in catalogue.entries()}
    found = {}
    for figures, experiment, shown, _, _ in ROWS:
        name = experiment.strip("`").removeprefix("+exp=")
        assert int(shown) == minutes[name]
        found |= {figure: name for figure in re.findall(r"`(\w+)`", figures)}
    assert found == {name: module.EXPERIMENT for name, module in FIGURES.items()}


def test_each_status_is_the_verdict():
    said = {row["id"]: row["verdict"] for row in json.loads((ROOT / "docs" / "claims.json").read_text())}
    shown = {}
    for *_, status in ROWS:
        for part in status.split(";"):
            shown |= {claim: part.split()[-1] for claim in re.findall(r"C\d+", part) if "not reproduced" not in part}
            shown |= {claim: "not" for claim in re.findall(r"C\d+", part) if "not reproduced" in part}
    assert shown == said == dict.fromkeys(claim.id for claim in claims.CLAIMS) | said


def test_the_picture_is_the_figure(golden, tmp_path):
    style.use()
    _, png = style.save(cliff.draw(golden, cliff.points(golden)), tmp_path, "cliff")
    assert png.read_bytes() == (ROOT / "docs" / "img" / "cliff.png").read_bytes()
