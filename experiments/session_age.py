"""What a frame of audio costs as its session grows old, with vLLM as it is and with the plugin's stream fixes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import sweep
from experiments.manifest import Manifest
from experiments.progress import Columns, Progress, number, spread
from experiments.schema import Run
from metronome.backends.base import EngineInfo
from metronome.frames import NS_PER_MS, SessionSpec
from metronome.stats import engine_latency_ns, quantile, slope_interval
from metronome.trace import Trace, TraceWriter

COLUMNS: Columns = {
    "model (weights)": lambda r: f"{r['model']} ({r['weights']})",
    "stream fixes": lambda r: "on" if r["stream_fixes"] else "off",
    "frames": lambda r: str(sum(r["frames"].values())),
    "p50, first tenth": lambda r: number(r["first_ms"], 1),
    "p50, last tenth": lambda r: number(r["last_ms"], 1),
    "ms per 100 frames more": lambda r: spread(r["slope_ms_per_100_frames"], 2),
    "max": lambda r: number(r["max_ms"], 0),
    "KV": lambda r: r["kv"],
}
CAPTION = "one session; engine latencies in ms, the slope with its 95 % interval; the KV cache is the same in both rows"


class Experiment:
    """The same call twice: on an engine with the fixes, and on one without."""

    def __init__(self, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        assert run.session_age is not None
        self._calls = []
        for fixes in run.session_age.stream_fixes:
            own = dataclasses.replace(run, engine=dataclasses.replace(run.engine, stream_fixes=fixes), session_age=None)
            name = "fixed" if fixes else "stock"
            self._calls.append(_Call(name, own, directory, manifest, progress))

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        return [result for call in self._calls for result in await call.execute(writer)]


class _Call(sweep.Case):
    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        return super().judge(point, specs, info, trace) | {"stream_fixes": info.stream_fixes} | age(trace)


def age(trace: Trace) -> dict[str, Any]:
    """Of one session: how latency goes with the frame's number."""
    answered = trace.frames[trace.frames.done_ns.notna()]
    latency_ms = engine_latency_ns(answered) / NS_PER_MS
    tenth = max(len(latency_ms) // 10, 1)
    slope = slope_interval(answered.frame_idx.to_numpy(dtype=float), latency_ms)
    return {
        "first_ms": quantile(latency_ms[:tenth], 0.5),
        "last_ms": quantile(latency_ms[-tenth:], 0.5),
        "slope_ms_per_100_frames": [100 * value for value in slope],
        "max_ms": float(latency_ms.max()),
    }
