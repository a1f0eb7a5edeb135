"""The README's numbers are those of the committed traces."""

import math
from pathlib import Path

import pytest

from experiments.sink_ablation import perplexity
from figures import cliff, style
from metronome import stats, trace

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def golden():
    return trace.read(ROOT / "data" / "golden", "cliff_sweep")


def number(value):
    return "-" if value is None else "never" if math.isinf(value) else f"{value:.0f}"


def test_the_table_is_what_the_traces_say(golden):
    rows = [line for line in README.splitlines() if line.startswith(("| unbounded |", "| window256+4 |"))]
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


def test_what_sinks_are_worth_is_what_the_traces_say():
    nll = trace.read(ROOT / "data" / "golden", "sink_ablation").scores.query("task == 'teacher'")
    columns = ("window256+0-keep", "window256+4-keep", "window256+4-anchor", "unbounded")
    for row, part in (("within the trained context", nll[nll.start < 8192]), ("past it", nll[nll.start >= 8192])):
        cells = [perplexity(part[part.point_id == point_id]) for point_id in columns]
        shown = ["-" if cell is None else f"{cell[0]:.1f}" for cell in cells]
        assert f"| {row} | {' | '.join(shown)} |" in README


def test_the_picture_is_the_figure(golden, tmp_path):
    style.use()
    _, png = style.save(cliff.draw(golden), tmp_path, "cliff")
    assert png.read_bytes() == (ROOT / "docs" / "img" / "cliff.png").read_bytes()
