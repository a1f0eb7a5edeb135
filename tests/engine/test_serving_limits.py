"""Memory's ceiling and the gate, on the real engine with the model of two layers."""

import pytest
from command import run_experiment

from metronome import trace
from metronome.capacity import find_ceiling, find_n_star
from metronome.frames import Action
from metronome.service import windows

pytestmark = [pytest.mark.engine, pytest.mark.alone]


@pytest.fixture(scope="module")
def capacity(tmp_path_factory):
    """A pool so small that memory, not the deadline, is what ends the search."""
    out = tmp_path_factory.mktemp("runs") / "run"
    manifest, _ = run_experiment(
        out,
        "+exp=capacity_tiny", "kv.window=64", "workload.sessions=[4,10]", "workload.duration_s=7",
        "workload.period_ms=400", "workload.deadline_ms=400", "model.tokens_per_second=25",
        "engine.num_blocks=31", "engine.max_num_batched_tokens=64", "engine.max_num_seqs=64",
        "capacity.warm_up_s=2", "capacity.repeats=1", "capacity.ceilings=1",
    )  # fmt: skip
    return manifest, trace.read(out, "capacity_tiny")


def test_the_pool_holds_as_many_idle_sessions_as_the_block_arithmetic_says(capacity):
    _, data = capacity
    found = find_ceiling(data.of("window64+4-ceiling-r0"))
    print(found)
    assert abs(found.measured - found.predicted) <= 1 and found.measured > 3
    last = data.of("window64+4-ceiling-r0").frames
    assert (last.status == "lost").sum() == 1  # the one that found no room


def test_the_search_ends_with_a_number_served_and_its_successor_not(capacity):
    manifest, data = capacity
    (n_star,) = find_n_star(data)
    assert manifest["results"][0]["n_star_repeats"] == [n_star]
    tried = {p["sessions"]: p["served"] for p in manifest["points"]}
    assert n_star == 0 or tried[n_star]
    assert not tried[n_star + 1]
    assert n_star <= find_ceiling(data.of("window64+4-ceiling-r0")).measured


def test_a_gate_keeps_the_engine_to_its_number(tmp_path):
    run_experiment(
        tmp_path / "run",
        "+exp=admission", "kv=sinks", "workload.duration_s=16", "workload.mean_lifetime_s=8", "engine.num_blocks=601",
        "admission.n_star=6", "admission.offered=[12]", "admission.cases=[{kv: window, policy: fixed}]",
    )  # fmt: skip
    gated = trace.read(tmp_path / "run", "admission").of("fixed-window256+4")
    counts = gated.decisions.action.value_counts()
    assert counts[Action.REFUSE] > 0 and counts[Action.ADMIT] > 6
    assert gated.decisions.num_active.max() == 6 and set(gated.decisions.limit) == {6}
    refused = set(gated.decisions[gated.decisions.action == Action.REFUSE].session_id)
    frames = gated.frames
    assert set(frames[frames.status == "refused"].session_id) == refused
    served = frames[~frames.session_id.isin(refused)]
    assert served.done_ns.notna().mean() > 0.9
    in_engine = gated.pool.running + gated.pool.waiting
    assert in_engine.max() <= 6
    assert len(windows(gated)) == 3  # the last period is left out
