"""The claims table: what is committed is what the traces say, and a verdict follows the data."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from figures import claims, evidence_bound, evidence_cliff
from figures.__main__ import FIGURES, main
from metronome import trace

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "data" / "golden"


@pytest.fixture(scope="module")
def rows():
    return {row["id"]: row for row in json.loads((ROOT / "docs" / "claims.json").read_text())}


def test_the_documents_are_what_the_traces_say(capsys):
    assert main(["claims", "--data", str(GOLDEN), "--out", str(ROOT / "docs"), "--check"]) == 0, capsys.readouterr().err


def test_every_claim_is_there_once_with_a_rule(rows):
    assert list(rows) == [f"C{i}" for i in range(1, 15)]
    assert claims.RULE in (ROOT / "docs" / "CLAIMS.md").read_text()
    for row in rows.values():
        holds = list(row["criteria"].values())
        assert row["verdict"] == ("reproduced" if all(holds) else "partly" if any(holds) else "not")
        assert row["runs"] and row["measured"] and row["simulated"] is None


def test_every_experiment_named_has_a_figure():
    assert {claim.experiment for claim in claims.CLAIMS} <= {module.EXPERIMENT for module in FIGURES.values()}


def test_without_a_trace_nothing_is_claimed(tmp_path, capsys):
    assert main(["claims", "--data", str(tmp_path), "--out", str(tmp_path / "docs")]) == 0
    found = json.loads((tmp_path / "docs" / "claims.json").read_text())
    assert {row["verdict"] for row in found} == {"not tested"}
    assert "| C1 |" in (tmp_path / "docs" / "CLAIMS.md").read_text()


def test_a_run_that_cannot_tell_is_no_test(tmp_path, monkeypatch):
    def cannot(data):
        raise ValueError("unbounded-n4 did not collapse")

    claim = replace(claims.CLAIMS[4], judge=cannot)
    row = claims.judge(claim, [GOLDEN])
    assert row["verdict"] == "not tested" and row["measured"] == "this run cannot tell: unbounded-n4 did not collapse"


def test_a_run_whose_load_generator_was_late_is_no_test(tmp_path):
    data = golden("recycling")
    assert claims.sent_late(data) == []
    late = replace(data, frames=data.frames.assign(sent_ns=data.frames.sent_ns + 1_000_000_000))
    assert claims.sent_late(late) == data.points.point_id.tolist()
    (one, *_) = data.points.point_id
    assert claims.sent_late(late, of=[one]) == [one]


def test_a_difference_is_shown(tmp_path, capsys):
    (tmp_path / "CLAIMS.md").write_text("another\n")
    assert main(["claims", "--data", str(tmp_path), "--out", str(tmp_path), "--check"]) == 1
    assert "-another" in capsys.readouterr().err
    assert (tmp_path / "CLAIMS.md").read_text() == "another\n"


def golden(experiment):
    return trace.read(GOLDEN, experiment)


def verdict(judge, data):
    return claims.verdict(judge(data))


def swapped(data):
    """What the bounded engine did, told of the unbounded one, and the other way round."""
    points = data.points.copy()
    bounded = points.kv != "unbounded"
    kv = points.kv[bounded].iloc[0]
    ids = dict(zip(points.point_id[bounded], points.point_id[~bounded], strict=True))
    ids |= {other: one for one, other in ids.items()}
    tables = {n: getattr(data, n).assign(point_id=lambda t: t.point_id.map(ids)) for n in ("frames", "pool")}
    assert kv in ids[points.point_id[~bounded].iloc[0]]
    return replace(data, **tables)


def test_collapses_that_change_sides_change_the_verdicts():
    data = golden("metastability")
    assert verdict(evidence_cliff.never_collapses, data) == "reproduced"
    assert verdict(evidence_cliff.never_collapses, swapped(data)) == "not"


def test_frames_that_are_answered_after_all_are_no_step():
    data = golden("cliff_sweep")
    lost = data.frames.status == "lost"
    late = data.frames.assign(
        status=data.frames.status.mask(lost, "late"),
        done_ns=data.frames.done_ns.mask(lost, data.frames.release_ns + 5_000_000_000),
        first_token_ns=data.frames.first_token_ns.mask(lost, data.frames.release_ns + 5_000_000_000),
    )
    said = evidence_cliff.one_step_to_a_stall(replace(data, frames=late))
    assert claims.verdict(said) == "partly" and list(said.criteria.values()) == [True, False, False]


def test_runs_that_are_late_from_the_start_show_no_flat_latency():
    data = golden("cliff_sweep")
    slow = data.frames.assign(done_ns=data.frames.done_ns + 20_000_000_000)
    said = evidence_cliff.one_step_to_a_stall(replace(data, frames=slow))
    assert claims.verdict(said) != "reproduced"


def test_n_star_above_memory_binds_nothing(monkeypatch):
    marks = pd.DataFrame(
        [{"series": "n_star", "x": 90.0, "low": 80.0, "high": 100.0}, {"series": "ceiling", "x": 60.0, "low": 60.0}]
    )
    monkeypatch.setattr(evidence_bound.slope, "points", lambda data: marks)
    assert verdict(evidence_bound.deadline_binds_first, None) == "not"
    monkeypatch.setattr(
        evidence_bound.slope, "points", lambda data: marks.assign(x=[20.0, 60.0], high=[25.0, math.nan])
    )
    assert verdict(evidence_bound.deadline_binds_first, None) == "reproduced"


def test_sinks_that_are_worth_something_only_in_free_running_are_the_paper_s(monkeypatch):
    def marks(turn, free):
        rows = []
        for point_id, a, b in zip(("window256+0-keep", "window256+4-anchor"), turn, free, strict=True):
            rows.append({"series": "turn", "point_id": point_id, "x": 0, "y": a})
            rows.append({"series": "free", "point_id": point_id, "x": 9, "y": b, "low": b - 1, "high": b + 1})
        return pd.DataFrame(rows)

    for turn, free, expected in (
        ((60, 60), (50, 5), "reproduced"),
        ((60, 60), (5, 5), "partly"),
        ((90, 60), (5, 5), "not"),
    ):
        monkeypatch.setattr(evidence_bound.sinks, "points", lambda data, t=turn, f=free: marks(t, f))
        assert verdict(evidence_bound.sinks_matter_free_only, None) == expected
