"""Claims C11 and C14: other models, and loads other than voice, on one pool, with and without a bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import sweep
from experiments.manifest import Manifest
from experiments.progress import Columns, Progress, number
from experiments.schema import Run
from metronome.backends.base import EngineInfo
from metronome.frames import SessionSpec
from metronome.trace import Trace, TraceWriter


def _off(result: Mapping[str, Any]) -> str:
    """How far the collapse lies from its prediction."""
    at, predicted = result["t_collapse_s"], result["predicted_t_sat_s"]
    return "-" if at is None or predicted is None else f"{100 * (at / predicted - 1):+.1f} %"


def _heard(result: Mapping[str, Any]) -> str:
    """Audio tokens a second, as the engine counted them and as the profile says."""
    seen, profile = result["audio_tokens_per_s"], result["profile_tokens_per_s"]
    return "-" if seen is None else f"{seen:g} / {profile:g}"


COLUMNS: Columns = {
    "case": lambda r: r["case"],
    "model (weights)": lambda r: f"{r['model']} ({r['weights']})",
    "kv": lambda r: r["kv"],
    "N": lambda r: str(r["sessions"]),
    "outcome": lambda r: r["outcome"],
    "cause": lambda r: r["cause"] or "-",
    "t collapse": lambda r: number(r["t_collapse_s"], 1),
    "predicted": lambda r: number(r["predicted_t_sat_s"], 1),
    "off": _off,
    "audio tokens/s, engine / profile": _heard,
    "KiB per token": lambda r: f"{r['kv_bytes_per_token'] / 1024:g}",
    "ok/late/empty/lost": lambda r: "/".join(str(r["frames"][status]) for status in ("ok", "late", "empty", "lost")),
    "engine p50": lambda r: number(r["engine_latency_ms"]["p50"], 0),
    "p99": lambda r: number(r["engine_latency_ms"]["p99"], 0),
    "rho max": lambda r: number(r["rho_max"], 2),
}
CAPTION = (
    "latencies in ms, times in s; KiB per token: of the real model's KV cache, all layers, in bfloat16; tiny weights "
    "are random: right for systems questions only"
)


class _Case(sweep.Case):
    """One model under one workload, in all its KV modes."""

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        model, workload = self._run.model, self._run.workload
        heard = None
        if workload.says == "speech" and workload.tokens_in is None:
            answered = trace.frames[trace.frames.done_ns.notna()]
            per_frame = answered.tokens_in.mean() - model.wrap_tokens(workload.period_ms)
            heard = float(per_frame) * 1000 / workload.period_ms
        return super().judge(point, specs, info, trace) | {
            "case": self._name,
            "workload": workload.name,
            "audio_tokens_per_s": heard,
            "profile_tokens_per_s": model.tokens_per_second,
            "kv_bytes_per_token": model.kv_bytes_per_token,
        }


class Experiment:
    """The cases one after the other."""

    def __init__(self, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        self._cases = [_Case(name, case, directory, manifest, progress) for name, case in run.cases().items()]

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        return [result for case in self._cases for result in await case.execute(writer)]
