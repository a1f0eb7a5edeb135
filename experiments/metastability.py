"""Identical runs that collapse or survive: counted on the real engine, beside the odds that the law gives."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments import sweep
from experiments.progress import Columns, number, spread
from metronome.backends.base import EngineInfo
from metronome.churn import predict_point
from metronome.frames import SessionSpec
from metronome.stats import wilson_interval
from metronome.trace import Trace, TraceWriter
from metronome.warning import Evaluation, evaluate

COLUMNS: Columns = {
    "kv": lambda r: r["kv"],
    "N": lambda r: str(r["sessions"]),
    "runs": lambda r: str(r["runs"]),
    "collapsed": lambda r: str(r["collapsed"]),
    "share": lambda r: spread(r["share"], 2),
    "the law says": lambda r: number(r["predicted"], 2),
    "given these lifetimes": lambda r: number(r["expected_collapses"], 1),
    "causes": lambda r: ", ".join(f"{n} {cause}" for cause, n in r["causes"].items()) or "-",
    "invalid": lambda r: str(r["invalid"]),
    "warned": lambda r: f"{r['warned']}/{r['collapsed']}",
    "least lead": lambda r: number(r["least_lead_periods"], 1),
    "false alarms": lambda r: f"{r['false_alarms']}/{r['runs'] - r['collapsed']}",
}
CAPTION = (
    "share with its 95 % Wilson interval; given these lifetimes: collapses that the law expects of these very runs; "
    "warned: collapses with an alarm on before them, lead in periods; "
    "false alarms: surviving runs that ever had one"
)
_DRAWS_PER_RUN = 100


class Experiment(sweep.Experiment):
    """The repeats of a sweep, judged together per KV mode."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._forecasts: dict[str, Evaluation] = {}
        self._bounded: list[pd.DataFrame] = []  # frames on the bounded engine
        self._unbounded: list[pd.Series] = []
        self._num_blocks = 0

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        results = await super().execute(writer)
        modes = dict.fromkeys((r["kv"], r["sessions"]) for r in results)
        rows = [self._conclude(kv, n, [r for r in results if (r["kv"], r["sessions"]) == (kv, n)]) for kv, n in modes]
        self._manifest.conclude(rows)
        return rows

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        self._num_blocks = info.num_blocks
        self._forecasts[point.point_id] = evaluate(trace)
        if point.bound:
            self._bounded.append(trace.frames)
        else:
            self._unbounded.append(trace.points.iloc[0])
        return super().judge(point, specs, info, trace)

    def _conclude(self, kv: str, sessions: int, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        dead = [r for r in results if r["cause"] is not None]
        low, high = wilson_interval(len(dead), len(results))
        leads = [self._forecasts[r["point_id"]].lead_periods for r in dead]
        survivors = [r for r in results if r["cause"] is None]
        causes = [r["cause"] for r in dead]
        return {
            "kv": kv,
            "sessions": sessions,
            "runs": len(results),
            "collapsed": len(dead),
            "share": [len(dead) / len(results), low, high],
            "predicted": self._predict(sessions) if kv == "unbounded" else self._predict_bounded(sessions),
            "expected_collapses": self._expect(sessions) if kv == "unbounded" else None,
            "causes": {cause: causes.count(cause) for cause in sorted(set(causes))},
            "invalid": sum(r["outcome"] == "invalid" for r in results),
            "warned": sum(lead is not None for lead in leads),
            "least_lead_periods": min((lead for lead in leads if lead is not None), default=None),
            "false_alarms": sum(self._forecasts[r["point_id"]].num_alarms > 0 for r in survivors),
        }

    def _predict(self, sessions: int) -> float | None:
        """None without bounded runs to take turn lengths from."""
        points = [p for p in self._unbounded if p.sessions == sessions]
        return predict_point(points[0], pd.concat(self._bounded)).probability if points and self._bounded else None

    def _expect(self, sessions: int) -> float | None:
        """How many of these very runs should collapse, how long their sessions lasted being known."""
        if not self._bounded:
            return None
        bounded = pd.concat(self._bounded)
        runs = [p for p in self._unbounded if p.sessions == sessions]
        return sum(predict_point(p, bounded, _DRAWS_PER_RUN, given_lifetimes=True).probability for p in runs)

    def _predict_bounded(self, sessions: int) -> float | None:
        """0 where the plateaus of all sessions fit the pool; the law says nothing where they do not."""
        bound = self._run.bound("window")
        assert bound is not None
        fits = sessions * bound.max_blocks(self._run.frame_tokens.num_in) <= self._num_blocks
        return 0.0 if fits else None
