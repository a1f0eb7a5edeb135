"""What the forecast is worth: replayed on recorded runs, lead time before a collapse and alarms without one."""

from collections.abc import Sequence
from dataclasses import dataclass

from metronome.facts import bound_of
from metronome.forecast import Forecaster
from metronome.stats import find_death
from metronome.trace import Trace
from metronome.window import Bound

HORIZON_PERIODS = 20  # the alarm is raised this long before the wall


def make_forecaster(period_ns: int, bound: Bound | None, tokens_in: int) -> Forecaster:
    """Levels a frame period apart; it knows what a bounded session can hold."""
    return Forecaster(
        step_ns=period_ns,
        horizon_ns=HORIZON_PERIODS * period_ns,
        session_blocks=bound.max_blocks(tokens_in) if bound else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One run. lead_periods: from the alarm that was on when the pool's collapse came; None without one."""

    point_id: str
    kv: str
    cause: str | None  # of its collapse
    num_alarms: int  # times an alarm was raised before the collapse, or in a run that survived
    lead_periods: float | None


def evaluate(trace: Trace, *, told_bound: bool = True) -> Evaluation:
    """Replay the forecast on a trace of one point, from its pool samples alone.

    told_bound: a bounded run's forecaster knows the bound, as it does while the run is served.
    """
    point = trace.points.iloc[0]
    period_ns = int(point.period_ns)
    forecaster = make_forecaster(period_ns, bound_of(point) if told_bound else None, int(point.tokens_in))
    collapse_ns, cause = find_death(point, trace.frames, trace.pool) or (float("inf"), None)
    pool = trace.pool[(trace.pool.t_ns <= collapse_ns) & (trace.pool.t_ns <= point.duration_ns)]
    columns = [pool.t_ns, pool.blocks_used, pool.blocks_total, pool.running + pool.waiting]
    since: int | None = None
    num_alarms = 0
    for t_ns, used, total, num_sessions in zip(*(c.to_numpy(dtype=int).tolist() for c in columns), strict=True):
        seen = forecaster.update(t_ns, used, total, num_sessions)
        if seen.alarm and since is None:
            since = t_ns
            num_alarms += 1
        elif not seen.alarm:
            since = None
    lead = None if cause is None or since is None else (collapse_ns - since) / period_ns
    return Evaluation(point_id=point.point_id, kv=point.kv, cause=cause, num_alarms=num_alarms, lead_periods=lead)


def conclude(runs: Sequence[Evaluation]) -> list[str]:
    """The forecast's record over many runs, one line per KV mode."""
    lines = []
    for kv in dict.fromkeys(run.kv for run in runs):
        full = [run for run in runs if run.kv == kv and run.cause == "kv_full"]
        leads = [run.lead_periods for run in full if run.lead_periods is not None]
        others = [run for run in runs if run.kv == kv and run.cause != "kv_full"]
        least = f", at least {min(leads):.1f} periods ahead" if leads else ""
        lines.append(
            f"{kv}: warned before {len(leads)} of {len(full)} full pools{least}; "
            f"alarms in {sum(run.num_alarms > 0 for run in others)} of {len(others)} other runs"
        )
    return lines
