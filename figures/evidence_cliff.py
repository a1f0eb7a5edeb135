"""Claims C1 to C5, C11 and C14: the cliff, what hides it, when it comes and who meets it.

Limits that the paper does not give are stated in the criterion's own words.
"""

import numpy as np
import pandas as pd

from figures import cliff, generality, metastability, saturation, silence
from figures.evidence import Evidence, is_unbounded
from metronome.stats import Summary, engine_latency_ns, quantile, summarise
from metronome.trace import Trace

FLAT, CLOSE = 1.5, 0.05
PAPER_COLLAPSED = 14 / 20  # C3
PAPER_WORST_ERROR = 0.13  # C5, MiniCPM-o-4.5
OMNI_MODELS = ("qwen2_5_omni", "moshi", "minicpm_o_4_5", "qwen3_omni_30b")
OTHER_LOADS = ("agent", "video")


def one_step_to_a_stall(trace: Trace) -> Evidence:
    found = _summaries(trace, is_unbounded(trace))
    points = trace.points.set_index("point_id")
    filled = {p: s for p, s in found.items() if _fills(points.loc[p])}
    dead = {p: s for p, s in filled.items() if s.t_collapse_s is not None}
    growth = [_growth_until_silent(trace.of(p), s) for p, s in dead.items()]
    after = [_answered_after(trace.of(p), s) for p, s in dead.items()]
    ends = ", ".join(f"N={points.loc[p].sessions:.0f} at {s.t_collapse_s:.1f} s" for p, s in dead.items())
    return Evidence(
        f"silent for good: {ends}; until then, median latency of the second half over the first: "
        + ", ".join(f"{g:.2f}" for g in growth),
        {
            "every unbounded run whose pool the block arithmetic fills falls silent, of a full pool": len(dead) > 0
            and len(dead) == len(filled)
            and all(s.cause == "kv_full" for s in dead.values()),
            f"until then latency is flat: the second half's median is at most {FLAT} times the first half's": bool(
                growth
            )
            and max(growth) <= FLAT,
            "it is one step: no frame that is released after the last token is ever answered": bool(after)
            and sum(after) == 0,
        },
    )


def _summaries(trace: Trace, where: pd.Series) -> dict[str, Summary]:
    return {point_id: summarise(trace.of(point_id)) for point_id in trace.points[where].point_id}


def _fills(point: pd.Series) -> bool:
    t_sat = cliff.predicted_s(point)
    return t_sat is not None and t_sat < point.duration_ns / 1e9


def _growth_until_silent(one: Trace, found: Summary) -> float:
    frames = one.frames[one.frames.done_ns.notna()]
    middle = frames.release_ns < found.t_collapse_s * 1e9 / 2
    first, second = (quantile(engine_latency_ns(frames[part]), 0.5) for part in (middle, ~middle))
    return np.inf if first is None or second is None else second / first  # late from the start: nothing flat


def _answered_after(one: Trace, found: Summary) -> int:
    after = one.frames[one.frames.release_ns > found.t_collapse_s * 1e9]
    return int(after.done_ns.notna().sum())


def silent(trace: Trace) -> Evidence:
    found = _summaries(trace, is_unbounded(trace))
    dead = {p: s for p, s in found.items() if s.t_collapse_s is not None}
    deadline_ms = trace.points.deadline_ns.iloc[0] / 1e6
    marks = silence.points(trace).set_index("series").y
    observed = {kind: marks[[f"ttft_{kind}", f"inter_token_{kind}"]].sum() for kind in ("before", "after")}
    worst = max(s.frontend_latency_ms["p99"] for s in dead.values())
    preempted = max(trace.of(p).pool.preemptions.max() for p in dead)
    return Evidence(
        f"{len(dead)} collapsed runs: front-end p99 {worst:.0f} ms at a deadline of {deadline_ms:.0f} ms; latencies "
        f"that vLLM observed: {observed['before']:.0f} before, {observed['after']:.0f} after; "
        f"preemptions: {preempted:.0f}",
        {
            "the front end's p99 meets the deadline in every collapsed run": worst <= deadline_ms,
            "spoken output stops: no later frame is answered": sum(
                _answered_after(trace.of(p), s) for p, s in dead.items()
            )
            == 0,
            "vLLM's own latency histograms see nothing more": bool(observed["before"] > 0 and observed["after"] == 0),
        },
    )


def _collapsed_runs(trace: Trace) -> tuple[pd.DataFrame, dict[str, int], dict[str, int]]:
    """Marks; collapsed runs and all runs by KV mode."""
    marks = metastability.points(trace)
    runs = marks[marks.series == "rho"].groupby("kv").point_id.nunique().to_dict()
    dead = marks[marks.series == "collapse"].groupby("kv").size().to_dict()
    return marks, {kv: int(dead.get(kv, 0)) for kv in runs}, runs


def _share_interval(marks: pd.DataFrame, kv: str) -> tuple[float, float]:
    """95 % Wilson interval of the share that collapsed."""
    survived = marks[(marks.series == "share") & (marks.kv == kv)].iloc[0]
    return 1 - survived.high, 1 - survived.low


def metastable(trace: Trace) -> Evidence:
    marks, dead, runs = _collapsed_runs(trace)
    low, high = _share_interval(marks, "unbounded")
    n, k = runs["unbounded"], dead["unbounded"]
    return Evidence(
        f"{k} of {n} identical runs collapsed (95 % Wilson {low:.3f} to {high:.3f})",
        {
            "of identical unbounded runs some collapse and some survive": 0 < k < n,
            f"the paper's share, {PAPER_COLLAPSED:.2f}, lies in the 95 % interval": low <= PAPER_COLLAPSED <= high,
        },
    )


def never_collapses(trace: Trace) -> Evidence:
    marks, dead, runs = _collapsed_runs(trace)
    (bounded,) = [kv for kv in runs if kv != "unbounded"]
    _, high = _share_interval(marks, bounded)
    low, _ = _share_interval(marks, "unbounded")
    return Evidence(
        f"{dead[bounded]} of {runs[bounded]} runs with {bounded} collapsed (95 % Wilson up to {high:.2f})",
        {
            "no bounded run collapses": dead[bounded] == 0,
            "its 95 % interval lies below the unbounded one's": high < low,
        },
    )


def predicts(trace: Trace) -> Evidence:
    marks = saturation.points(trace)
    errors = {s: marks[marks.series == s].y.abs() / 100 for s in ("exact", "first_order", "fit")}
    said = {"exact": "block arithmetic", "first_order": "the paper's line", "fit": "line fitted to half the fill"}
    collapses = ", ".join(f"N={m.sessions} at {m.x:.1f} s" for m in marks[marks.series == "t_sat"].itertuples())
    return Evidence(
        f"{collapses}; largest error: " + ", ".join(f"{said[s]} {100 * e.max():.1f} %" for s, e in errors.items()),
        {
            f"the paper's line is within {CLOSE:.0%} of every collapse": errors["first_order"].max() <= CLOSE,
            f"a line fitted to the first half of the fill is within the paper's {PAPER_WORST_ERROR:.0%}": errors[
                "fit"
            ].max()
            <= PAPER_WORST_ERROR,
        },
    )


def _cases(trace: Trace, names: tuple[str, ...]) -> tuple[dict[str, Summary], dict[str, Summary], dict[str, float]]:
    """Of each named case: the unbounded run, the bounded one, and when the block arithmetic fills the pool."""
    unbounded, bounded, t_sat = {}, {}, {}
    for point in trace.points.itertuples():
        name = generality.case_of(point)
        if name not in names:
            continue
        found = summarise(trace.of(point.point_id))
        if point.kv == "unbounded":
            unbounded[name], t_sat[name] = found, cliff.predicted_s(point) or np.inf
        else:
            bounded[name] = found
    return unbounded, bounded, t_sat


def _cliffs(trace: Trace, names: tuple[str, ...]) -> Evidence:
    unbounded, bounded, t_sat = _cases(trace, names)
    ends = {n: np.inf if s.t_collapse_s is None else s.t_collapse_s for n, s in unbounded.items()}
    late = {n: sum(c for status, c in s.frames.items() if status != "ok") for n, s in bounded.items()}
    return Evidence(
        "unbounded, silent at (predicted): "
        + ", ".join(f"{n} {ends[n]:.1f} s ({t_sat[n]:.1f} s)" for n in unbounded)
        + f"; bounded, frames not answered in time: {sum(late.values())}",
        {
            f"unbounded, all {len(names)} fall silent of a full pool": set(unbounded) == set(names)
            and all(s.cause == "kv_full" for s in unbounded.values()),
            f"each within {CLOSE:.0%} of when the block arithmetic says": all(
                abs(ends[n] / t_sat[n] - 1) <= CLOSE for n in unbounded
            ),
            "bounded, every frame is answered in time": set(bounded) == set(names) and sum(late.values()) == 0,
        },
        of=[p.point_id for p in trace.points.itertuples() if generality.case_of(p) in names],
    )


def every_model(trace: Trace) -> Evidence:
    return _cliffs(trace, OMNI_MODELS)


def other_loads(trace: Trace) -> Evidence:
    return _cliffs(trace, OTHER_LOADS)
