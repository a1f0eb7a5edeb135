"""Claims C6 to C10, C12 and C13: what the bound makes of latency, admission, quality and borders.

Limits that the paper does not give are stated in the criterion's own words.
"""

import pandas as pd

from figures import admission, long_call, recycling, sinks, slope
from figures.evidence import Evidence, is_unbounded
from metronome.facts import bound_of
from metronome.stats import Summary, summarise
from metronome.trace import Trace

FAR, N_STAR_WITHIN = 0.5, 0.1


def is_a_slope(trace: Trace) -> Evidence:
    marks = slope.points(trace).set_index("series")
    ladder = marks.loc[["p95"]]
    rank = float(marks.loc["spearman"].y)
    spoken = ", ".join(f"{n:.0f}: {ms:.0f}" for n, ms in zip(ladder.x, ladder.y, strict=True))
    return Evidence(
        f"p95 in ms by N: {spoken}; Spearman {rank:.3f}",
        {"bounded, p95 rises with N: Spearman's rank correlation is 0.95 or more": rank >= 0.95},
    )


def deadline_binds_first(trace: Trace) -> Evidence:
    marks = slope.points(trace).set_index("series")
    n_star, ceiling = marks.loc["n_star"], marks.loc["ceiling"]
    return Evidence(
        f"N* {n_star.x:.0f} [{n_star.low:.0f}, {n_star.high:.0f}], the pool holds {ceiling.x:.0f}: "
        f"{n_star.x / ceiling.x:.0%}",
        {
            "N*, with its 95 % interval, lies below what memory holds": n_star.high < ceiling.low,
            f"far below: at most {FAR:.0%} of it (the paper: 42 %)": n_star.x <= FAR * ceiling.x,
        },
    )


def _control(marks: pd.DataFrame, policy: str, bounded: bool) -> tuple[pd.Series, pd.DataFrame]:
    own = marks[(marks.policy == policy) & ((marks.kv != "unbounded") == bounded)]
    return own[own.series == "mean"].set_index("of").y, own[own.series == "collapse"]


def controller_finds(trace: Trace) -> Evidence:
    means, death = _control(admission.points(trace), "aimd", bounded=True)
    n_star = trace.points.n_star.dropna().iloc[0]
    off = abs(means["limit"] / n_star - 1)
    return Evidence(
        f"limit {means['limit']:.0f} for N* {n_star:.0f}, {means['active']:.0f} sessions in over the last third; "
        f"within 10 % after {means['converged_windows']:.0f} windows, {means['late_share']:.2%} late since",
        {
            "the engine serves on": death.empty,
            f"the limit's mean over the last third is within {N_STAR_WITHIN:.0%} of N*": off <= N_STAR_WITHIN,
            "once there, at most 1 % of frames are late": means["late_share"] <= 0.01,
        },
    )


def controller_hits_the_wall(trace: Trace) -> Evidence:
    marks = admission.points(trace)
    means, death = _control(marks, "aimd", bounded=False)
    growth, growth_death = _control(marks, "growth", bounded=False)
    when = "never" if death.empty else f"{death.of.item()} at {death.x.item():.0f} s"
    return Evidence(
        f"the same controller, unbounded: {when}, with {means['active']:.0f} sessions in; growth-aware admission holds "
        f"{growth['active']:.0f} and {'serves on' if growth_death.empty else 'dies'}",
        {
            "the same controller fills the unbounded engine's pool": not death.empty and death.of.item() == "kv_full",
            "it let in more than the pool can carry, as growth-aware admission finds": means["active"]
            > growth["active"],
        },
    )


def sinks_matter_free_only(trace: Trace) -> Evidence:
    marks = sinks.points(trace)
    without, anchored = ("window256+0-keep", "window256+4-anchor")
    turn = {
        p: marks[(marks.series == "turn") & (marks.point_id == p) & (marks.x == 0)].iloc[0] for p in (without, anchored)
    }
    free = {p: _last(marks[(marks.series == "free") & (marks.point_id == p)]) for p in (without, anchored)}
    return Evidence(
        f"perplexity of the first tokens of turns: {turn[without].y:.1f} without sinks, {turn[anchored].y:.1f} with 4; "
        "of the last stretch of free running: "
        + " and ".join(f"{one.y:.1f} [{one.low:.1f}, {one.high:.1f}]" for one in free.values()),
        {
            "per-turn decoding needs no sinks: perplexity without them at most 5 % above that with them": turn[
                without
            ].y
            <= 1.05 * turn[anchored].y,
            "free running needs them: perplexity without them above, 95 % intervals apart": free[without].low
            > free[anchored].high,
        },
    )


def _last(rows: pd.DataFrame) -> pd.Series:
    return rows.sort_values("x").iloc[-1]


def recycling_costs(trace: Trace) -> Evidence:
    computed = recycling.points(trace).query("series == 'computed'").groupby(["sessions", "engine"]).y.mean()
    rows = {(p.sessions, p.kv.startswith("window")): summarise(trace.of(p.point_id)) for p in trace.points.itertuples()}
    sizes = sorted({n for n, _ in rows})
    p99 = {key: found.engine_latency_ms["p99"] for key, found in rows.items()}
    return Evidence(
        "; ".join(
            f"N={n:.0f}: p99 {p99[n, True]:.0f} ms in the engine, {p99[n, False]:.0f} ms recycled; tokens computed per "
            f"frame {computed[n, True]:.1f} and {computed[n, False]:.1f}"
            for n in sizes
        ),
        {
            "recycling computes more tokens per frame at every N": all(
                computed[n, False] > computed[n, True] for n in sizes
            ),
            "its p99 is higher at every N": all(p99[n, False] > p99[n, True] for n in sizes),
            "in the engine every frame is answered in time": all(_all_in_time(rows[n, True]) for n in sizes),
        },
    )


def _all_in_time(found: Summary) -> bool:
    return found.frames["ok"] == sum(found.frames.values())


def bound_instead_of_border(trace: Trace) -> Evidence:
    marks = long_call.points(trace)
    (stock,) = trace.points[is_unbounded(trace)].itertuples()
    (call,) = trace.points[trace.points.positions == "anchor"].itertuples()
    length = {
        p: int(marks[(marks.point_id == p) & (marks.series == "latency")].x.max())
        for p in (stock.point_id, call.point_id)
    }
    held = int(marks[(marks.point_id == call.point_id) & (marks.series == "blocks")].y.max())
    plateau = bound_of(call).max_blocks(int(call.tokens_in))
    ended = trace.of(stock.point_id).frames.status.iloc[-1]
    return Evidence(
        f"one call of {length[call.point_id]:,} tokens in a pool of {call.num_blocks * call.block_size:,}, "
        f"{held} blocks held at most; stock engine: {ended} at {length[stock.point_id]:,} of {stock.max_model_len:,}",
        {
            "a bounded session outgrows the pool many times over (5 or more)": length[call.point_id]
            >= 5 * call.num_blocks * call.block_size,
            f"it never holds more than its plateau of {plateau} blocks": held <= plateau,
            "the stock session ends at max_model_len": length[stock.point_id] <= stock.max_model_len and ended != "ok",
        },
    )
