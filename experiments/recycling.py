"""Claim C12: the window in the engine against sessions that the application recycles."""

from collections.abc import Sequence
from typing import Any

from experiments import sweep
from experiments.progress import Columns, number
from metronome.backends.base import EngineInfo
from metronome.frames import NS_PER_MS, FrameStatus, SessionSpec
from metronome.stats import engine_latency_ns, quantile, recycled_frames
from metronome.trace import Trace

COLUMNS: Columns = {
    "kv": lambda r: r["kv"],
    "N": lambda r: str(r["sessions"]),
    "outcome": lambda r: r["outcome"],
    "engine p50": lambda r: number(r["engine_latency_ms"]["p50"], 0),
    "p95": lambda r: number(r["engine_latency_ms"]["p95"], 0),
    "p99": lambda r: number(r["engine_latency_ms"]["p99"], 0),
    "tokens computed per frame": lambda r: number(r["computed_per_frame"], 1),
    "recycles": lambda r: str(r["recycles"]),
    "p50 at a recycle": lambda r: number(r["recycle_p50_ms"], 0),
    "missed at a recycle": lambda r: str(r["missed_at_recycle"]),
    "missed elsewhere": lambda r: str(r["missed_elsewhere"]),
    "rho max": lambda r: number(r["rho_max"], 2),
}
CAPTION = "latencies in ms; missed: not answered in time; a recycle computes once more what the session keeps"


class Experiment(sweep.Experiment):
    """The same load on both engines, judged by what a recycle costs."""

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        return super().judge(point, specs, info, trace) | cost_of(trace)


def cost_of(trace: Trace) -> dict[str, Any]:
    """Of one point: what was computed, and what became of frames that had to compute anew."""
    frames = trace.frames
    answered = frames[frames.done_ns.notna()]
    recycled = recycled_frames(trace.points.iloc[0], frames)
    missed = frames.status != FrameStatus.OK
    latency_ns = quantile(engine_latency_ns(frames[recycled]), 0.5)
    return {
        "computed_per_frame": float((answered.tokens_in + answered.tokens_out - 1).mean()),
        "recycles": int(recycled.sum()),
        "recycle_p50_ms": None if latency_ns is None else latency_ns / NS_PER_MS,
        "missed_at_recycle": int((missed & recycled).sum()),
        "missed_elsewhere": int((missed & ~recycled).sum()),
    }
