"""When the pool is full: predicted from the block arithmetic, from the paper's line, from the first part of the run."""

import logging
from collections.abc import Sequence
from typing import Any

from experiments import sweep
from experiments.progress import Columns, number
from metronome.backends.base import EngineInfo
from metronome.frames import NS_PER_MS, NS_PER_S, SessionSpec
from metronome.saturation import first_order_t_sat_ns
from metronome.stats import fit_fill
from metronome.trace import Trace

log = logging.getLogger(__name__)

COLUMNS: Columns = {
    "model": lambda r: r["model"],
    "N": lambda r: str(r["sessions"]),
    "cause": lambda r: r["cause"] or "-",
    "t_sat": lambda r: number(r["t_collapse_s"], 2),
    "exact": lambda r: _with_error(r, r["predicted_t_sat_s"]),
    "first order": lambda r: _with_error(r, r["first_order_t_sat_s"]),
    "fitted line": lambda r: _with_error(r, r["fit_t_sat_s"][0]),
    "95 %": lambda r: f"[{number(r['fit_t_sat_s'][1], 1)}, {number(r['fit_t_sat_s'][2], 1)}]",
}
CAPTION = "times in s, errors against the real t_sat; first order: (1 - rho0) / (N r) with rho0 = 0"


def _with_error(result: dict[str, Any], predicted_s: float | None) -> str:
    real_s = result["t_collapse_s"]
    if predicted_s is None or not real_s:  # overloaded from the start: there is no time to be off by
        return number(predicted_s, 2)
    return f"{predicted_s:.2f} ({100 * (predicted_s / real_s - 1):+.1f} %)"


class Experiment(sweep.Experiment):
    """A sweep whose points are also predicted from their own beginning."""

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        assert self._run.saturation is not None
        period_ns = self._run.workload.period_ms * NS_PER_MS
        line_ns = first_order_t_sat_ns(
            point.sessions, self._run.frame_tokens, period_ns, info.num_blocks, info.block_size
        )
        result = super().judge(point, specs, info, trace)
        try:
            fit = fit_fill(trace.points.iloc[0], trace.pool, self._run.saturation.fit_until)
        except ValueError as error:  # the engine did not live long enough; what was measured stays
            log.warning("%s", error)
            return result | {"first_order_t_sat_s": line_ns / NS_PER_S, "fit_t_sat_s": [None, None, None]}
        reached = (fit.t_sat_ns, fit.t_sat_low_ns, fit.t_sat_high_ns)
        return result | {
            "first_order_t_sat_s": line_ns / NS_PER_S,
            "fit_rho0": fit.rho0,
            "fit_rate_per_s": [rate * NS_PER_S for rate in (fit.rate_per_ns, fit.rate_low, fit.rate_high)],
            "fit_t_sat_s": [None if t is None else t / NS_PER_S for t in reached],
        }
