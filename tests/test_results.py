"""The numbers of docs/RESULTS.md are those of the committed traces."""

import math
from pathlib import Path

import pytest

from experiments.long_call import summarise as summarise_call
from experiments.recycling import cost_of
from experiments.session_age import age
from experiments.sink_ablation import perplexity
from figures import admission, cliff, generality, metastability, overload, saturation, slope
from metronome import facts, stats, trace, warning

ROOT = Path(__file__).parent.parent
RESULTS = (ROOT / "docs" / "RESULTS.md").read_text()


@pytest.fixture(scope="module")
def golden():
    return trace.read(ROOT / "data" / "golden", "cliff_sweep")


def number(value):
    return "-" if value is None else "never" if math.isinf(value) else f"{value:.0f}"


def test_the_table_is_what_the_traces_say(golden):
    rows = [line for line in RESULTS.splitlines() if line.startswith(("| unbounded |", "| window256+4 |"))]
    assert len(rows) == len(golden.points)
    for row, point in zip(rows, golden.points.itertuples(), strict=True):
        result = stats.summarise(golden.of(point.point_id))
        kv, sessions, outcome, last, predicted, counts, engine, frontend = (
            c.strip() for c in row.strip("|").split("|")
        )
        assert (kv, int(sessions)) == (point.kv, point.sessions)
        assert outcome.replace("*", "") == result.outcome + (f" ({result.cause})" if result.cause else "")
        assert last == ("-" if result.t_collapse_s is None else f"{result.t_collapse_s:.1f} s")
        t_sat = cliff.predicted_s(point)
        assert predicted == ("-" if t_sat is None else f"{t_sat:.1f} s")
        assert counts == " / ".join(str(result.frames[s]) for s in ("ok", "late", "lost"))
        assert engine == ", ".join(number(result.engine_latency_ms[q]) for q in ("p50", "p95"))
        assert frontend == number(result.frontend_latency_ms["p99"])


def test_what_sinks_are_worth_is_what_the_traces_say():
    nll = trace.read(ROOT / "data" / "golden", "sink_ablation").scores.query("task == 'teacher'")
    columns = ("window256+0-keep", "window256+4-keep", "window256+4-anchor", "unbounded")
    for row, part in (("within the trained context", nll[nll.start < 8192]), ("past it", nll[nll.start >= 8192])):
        cells = [perplexity(part[part.point_id == point_id]) for point_id in columns]
        shown = ["-" if cell is None else f"{cell[0]:.1f}" for cell in cells]
        assert f"| {row} | {' | '.join(shown)} |" in RESULTS


def test_what_a_long_call_costs_is_what_the_traces_say():
    calls = trace.read(ROOT / "data" / "golden", "long_call")
    for point_id, name in (
        ("window256+4-anchor", "anchored"),
        ("window256+4-keep", "kept"),
        ("unbounded", "stock, unbounded"),
    ):
        call = summarise_call(calls.of(point_id))
        blocks, parts = "-".join(map(str, call["blocks"])), call["perplexity_by_tenth"]
        slope, low, high = call["latency_slope_ms_per_1000_tokens"]
        last = "-" if point_id == "unbounded" else f"{parts[1]:.1f}, {parts[-1]:.1f}"
        row = f"| {name} | {call['tokens']:,} | {blocks} | {slope:.2f} [{low:.2f}, {high:.2f}] | {last} |"
        assert row in RESULTS


def test_when_the_pool_is_full_is_what_the_traces_say():
    marks = saturation.points(trace.read(ROOT / "data" / "golden", "saturation"))
    for sessions, one in marks.groupby("sessions"):
        of = one.set_index("series")
        cells = [f"{of.loc['t_sat'].x:.1f} s"]
        cells += [f"{of.loc[s].x:.1f} s ({of.loc[s].y:+.1f} %)" for s in ("exact", "first_order", "fit")]
        assert f"| {sessions} | {' | '.join(cells)} |" in RESULTS


def test_how_often_runs_collapse_is_what_the_traces_say():
    data = trace.read(ROOT / "data" / "golden", "metastability")
    marks = metastability.points(data)
    share = marks[marks.series == "share"].set_index("kv")
    runs = marks[marks.series == "rho"].groupby("kv").point_id.nunique()
    collapsed = marks[marks.series == "collapse"].groupby("kv").size().reindex(runs.index, fill_value=0)
    law = {"unbounded": 1 - marks[marks.series == "law"].y.iloc[-1], "window256+4": float(not bounded_fits(data))}
    for kv in runs.index:
        low, high = 1 - share.loc[kv].high, 1 - share.loc[kv].low
        assert f"| {kv}, {runs[kv]} runs | {collapsed[kv]} | {low:.2f} to {high:.2f} | {law[kv]:.2f} |" in RESULTS
    expected = runs["unbounded"] * (1 - marks[marks.series == "law_given_lifetimes"].y.iloc[-1])
    assert f"it expects {expected:.1f} of {runs['unbounded']} to collapse" in RESULTS


def bounded_fits(data):
    point = data.points[data.points.kv == "window256+4"].iloc[0]
    return point.sessions * facts.bound_of(point).max_blocks(int(point.tokens_in)) <= point.num_blocks


def test_the_warnings_are_what_the_traces_say():
    data = trace.read(ROOT / "data" / "golden", "metastability")
    found = [warning.evaluate(data.of(point_id)) for point_id in data.points.point_id]
    dead, alive = [e for e in found if e.cause], [e for e in found if not e.cause]
    assert min(e.lead_periods for e in dead) >= 20 and not any(e.num_alarms for e in alive)
    said = f"An alarm stood 20 periods or more before each of the {len(dead)}; none of the {len(alive)} others had one."
    assert said in RESULTS


def capacity_row(experiment):
    data = trace.read(ROOT / "data" / "golden", experiment)
    of = slope.points(data).set_index("series")
    point, n_star, ceiling = data.points.iloc[0], of.loc["n_star"], of.loc["ceiling"]
    slopes = ", ".join(f"{n:.0f}: {ms:.0f}" for n, ms in zip(of.loc["p95"].x, of.loc["p95"].y, strict=True))
    found = f"{n_star.x:.0f} [{n_star.low:.0f}, {n_star.high:.0f}]"
    memory = f"{ceiling.low:.0f}-{ceiling.high:.0f} / {of.loc['predicted_ceiling'].x:.0f}"
    return f"| {point.model} ({point.engine_dtype}) | {slopes} | {of.loc['spearman'].y:.3f} | {found} | {memory} |"


@pytest.mark.parametrize("experiment", ["capacity", "capacity_tiny"])
def test_how_many_sessions_is_what_the_traces_say(experiment):
    assert capacity_row(experiment) in RESULTS


def admission_rows():
    marks = admission.points(trace.read(ROOT / "data" / "golden", "admission"))
    for (policy, kv), one in marks.groupby(["policy", "kv"], sort=False):
        of, death = one[one.series == "mean"].set_index("of").y, one[one.series == "collapse"]
        ended = f"**{death.of.item()}** at {death.x.item():.0f} s" if len(death) else "serves on"
        limit = "-" if math.isinf(of["limit"]) else f"{of['limit']:.0f}"
        windows = "-" if math.isnan(of["converged_windows"]) else f"{of['converged_windows']:.0f}"
        name = f"{admission.TITLES[policy]}, {kv}"
        yield f"| {name} | {ended} | {limit} | {of['active']:.0f} | {windows} | {100 * of['late_share']:.2f} % |"


def test_what_policies_do_is_what_the_traces_say():
    rows = list(admission_rows())
    assert len(rows) == 5 and all(row in RESULTS for row in rows)


def overload_rows():
    marks = overload.points(trace.read(ROOT / "data" / "golden", "overload"))
    for policy, one in marks.groupby("policy"):
        step, recovered = one[one.series == "step"], one[one.series == "recovered"].y.item()
        goodput = " | ".join(f"{y:.0f}" for y in step.y)
        share = step.y.iloc[int(step.x.to_numpy().argmax())] / step.y.max()
        windows = "not within the run" if math.isnan(recovered) else f"{recovered:.0f}"
        yield f"| {admission.TITLES[policy]} | {goodput} | {100 * share:.0f} % | {windows} | {step.low.sum():.0f} |"


def test_what_overload_does_is_what_the_traces_say():
    rows = list(overload_rows())
    assert len(rows) == 2 and all(row in RESULTS for row in rows)


def generality_rows():
    data = trace.read(ROOT / "data" / "golden", "generality")
    for point in sorted(data.points.itertuples(), key=lambda p: (p.workload != "voice", generality.case_of(p))):
        result, predicted = stats.summarise(data.of(point.point_id)), "-"
        ended = "serves on"
        if result.t_collapse_s is not None:
            ended = f"**{result.cause}** at {result.t_collapse_s:.1f} s"
        if point.kv == "unbounded" and (t_sat := cliff.predicted_s(point)) is not None:
            predicted = f"{t_sat:.1f} s"
        counts = " / ".join(str(result.frames[status]) for status in ("ok", "late", "lost"))
        latency = ", ".join(number(result.engine_latency_ms[q]) for q in ("p50", "p99"))
        name = f"{generality.case_of(point)} ({point.weights})"
        yield f"| {name} | {point.kv} | {point.sessions} | {ended} | {predicted} | {counts} | {latency} |"


def test_that_every_model_meets_the_cliff_is_what_the_traces_say():
    rows = list(generality_rows())
    assert len(rows) == 15 and all(row in RESULTS for row in rows)


def test_the_first_agent_falls_silent_when_the_arithmetic_says():
    data = trace.read(ROOT / "data" / "golden", "generality")
    (point,) = data.points.query("workload == 'agent' and kv == 'unbounded'").itertuples()
    frames = data.of(point.point_id).frames
    silent = frames[frames.session_id == frames[frames.status == "lost"].session_id.iloc[0]]
    first = silent[silent.status == "lost"].release_ns.min()
    assert first == cliff.predicted_s(point) * 1e9
    assert (silent[silent.release_ns >= first].status == "lost").all()


def test_every_model_hears_as_many_tokens_as_its_profile_says():
    """The trace holds what the engine counted, the points what the profile plans."""
    data = trace.read(ROOT / "data" / "golden", "generality")
    planned = data.frames.point_id.map(data.points.set_index("point_id").tokens_in)
    assert (data.frames.tokens_in == planned).all()


def recycling_rows():
    data = trace.read(ROOT / "data" / "golden", "recycling")
    for point in data.points.itertuples():
        of = data.of(point.point_id)
        result, cost = stats.summarise(of), cost_of(of)
        name = f"{'engine' if point.kv.startswith('window') else 'application'}, {point.kv}"
        ended = "serves on" if result.cause is None else f"**{result.cause}** at {result.t_collapse_s:.0f} s"
        latency = " | ".join(number(result.engine_latency_ms[q]) for q in ("p50", "p99"))
        missed = f"{cost['missed_at_recycle']} of {cost['recycles']} | {cost['missed_elsewhere']}"
        yield f"| {name} | {point.sessions} | {ended} | {latency} | {cost['computed_per_frame']:.1f} | {missed} |"


def test_what_recycling_costs_is_what_the_traces_say():
    rows = list(recycling_rows())
    assert len(rows) == 4 and all(row in RESULTS for row in rows)


def session_age_rows():
    data = trace.read(ROOT / "data" / "golden", "session_age")
    for point in data.points.itertuples():
        found = age(data.of(point.point_id))
        slope, low, high = found["slope_ms_per_100_frames"]
        name = "with the stream fixes" if point.stream_fixes else "vLLM 0.32 as it is"
        yield (
            f"| {name} | {found['first_ms']:.0f} | {found['last_ms']:.0f} | {slope:.1f} [{low:.1f}, {high:.1f}] | "
            f"{found['max_ms']:.0f} |"
        )


def test_what_age_costs_is_what_the_traces_say():
    rows = list(session_age_rows())
    assert len(rows) == 2 and all(row in RESULTS for row in rows)
