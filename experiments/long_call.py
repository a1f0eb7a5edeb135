"""One session without a border: blocks held, frame latency and perplexity against the length of the call.

Served, the call is a closed loop. Scored, the same tokens are one text.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.closed_loop import ClosedCall
from experiments.enginelog import starting
from experiments.manifest import Manifest
from experiments.points import engine_options, facts, policy_name
from experiments.progress import Columns, Progress, number, spread
from experiments.schema import Run
from experiments.sections import LongCall
from metronome.backends.base import Backend
from metronome.frames import NS_PER_MS, FrameStatus
from metronome.stats import engine_latency_ns, slope_interval
from metronome.tables import Score
from metronome.texts import find_texts, mix, segment_means
from metronome.trace import PointSink, Trace, TraceWriter
from metronome.window import Bound

COLUMNS: Columns = {
    "kv": lambda r: r["point_id"],
    "tokens": lambda r: str(r["tokens"]),
    "ended": lambda r: r["ended"],
    "blocks": lambda r: "-".join(map(str, r["blocks"])),
    "latency p50": lambda r: number(r["latency_ms"][0], 0),
    "p99": lambda r: number(r["latency_ms"][1], 0),
    "slope per 1,000 tokens": lambda r: spread(r["latency_slope_ms_per_1000_tokens"], 3),
    "perplexity by tenth": lambda r: " ".join(number(x, 1) for x in r["perplexity_by_tenth"]),
}
CAPTION = (
    "latencies in ms; blocks, latency and slope after the first tenth of the call, the slope with its 95 % interval"
)
NUM_PARTS = 10  # of a call, as hard as each other
_SLOPE_FRAMES = 20  # frames near each other are slow together: the slope is put through medians of so many
_SILENCE_S = 20.0  # a call that is not answered for this long is over


class Experiment:
    """One engine per bound, each serving the call and then scoring it; last the unbounded one, until its border."""

    def __init__(self, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        assert run.long_call is not None
        self._run = run
        self._call: LongCall = run.long_call
        self._directory = directory
        self._manifest = manifest
        self._progress = progress

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        results = []
        for bound in [*(choice.bound(self._run.engine.block_size) for choice in self._call.bounds), None]:
            results.append(await self._run_engine(bound, writer))
            self._manifest.add_point(results[-1])
        return results

    async def _run_engine(self, bound: Bound | None, writer: TraceWriter) -> dict[str, Any]:
        from metronome.backends.vllm_score import VllmScorer  # seconds to import: only if used
        from metronome.backends.vllm_stream import VllmStreamBackend

        point_id = policy_name(bound)
        self._progress.note(f"starting the engine for {point_id}")
        options = engine_options(self._run, self._directory, point_id, bound, None if bound else self._call.border)
        backend = VllmStreamBackend(self._run.model, options)
        with starting(self._directory / "engine.log"):
            await backend.start()
        try:
            self._manifest.add_engine(kv=point_id, **dataclasses.asdict(backend.info))
            served = {
                "sessions": 1,
                "deadline_ns": self._run.workload.deadline_ms * NS_PER_MS,
                "tokens_in": self._call.frame_tokens,
                "tokens_out": self._run.model.tokens_out,
            }
            sink = writer.point(facts(self._run, point_id, backend.info, bound, **served))
            scorer = VllmScorer(backend.engine)
            ids = self._read(scorer.encode)
            # Scored first: at its border the unbounded engine may not outlive the call.
            await self._score(scorer, sink, point_id, ids if bound else ids[: self._call.border - 1])
            await self._serve(backend, sink, point_id, ids, bound)
        finally:
            await backend.stop()
        return summarise(sink.trace())

    def _read(self, encode: Any) -> list[int]:
        texts = [encode(path.read_text()) for path in find_texts(self._call.text_dir)]
        enough = [t for t in texts if len(t) >= self._call.num_tokens // len(texts)]
        return mix(enough, self._call.num_tokens, NUM_PARTS)

    async def _score(self, scorer: Any, sink: PointSink, point_id: str, ids: Sequence[int]) -> None:
        self._progress.note(f"{point_id}: scoring {len(ids)} tokens")
        nll = -await scorer.score(ids)
        for start, num_tokens, value in segment_means(nll, 1, self._call.num_tokens // NUM_PARTS // 10):
            sink.score(
                Score(task="teacher", text="call", metric="nll", start=start, num_tokens=num_tokens, value=value)
            )

    async def _serve(
        self, backend: Backend, sink: PointSink, point_id: str, ids: list[int], bound: Bound | None
    ) -> None:
        """The call, frame by frame. It ends with its last frame, or where the engine ends it."""
        size = self._call.frame_tokens
        frames = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
        self._progress.note(f"{point_id}: serving {len(frames)} frames")
        deadline_ns = self._run.workload.deadline_ms * NS_PER_MS
        call = ClosedCall(backend, point_id, session_id=0, deadline_ns=deadline_ns, bound=bound, silence_s=_SILENCE_S)
        for frame in frames:
            record = await call.say(frame)
            sink.frame(record)
            sink.pool(backend.sample(call.now_ns()))
            if record.status not in (FrameStatus.OK, FrameStatus.LATE):
                break
        await call.hang_up()


def summarise(trace: Trace) -> dict[str, Any]:
    """Of one point: length reached, how the call ended, blocks, latency and its slope, perplexity by tenth."""
    point, frames, scores = trace.points.iloc[0], trace.frames, trace.scores
    answered = frames[frames.done_ns.notna()]
    length = (answered.frame_idx + 1).to_numpy(dtype=float) * (point.tokens_in + point.tokens_out - 1)
    latency_ms = engine_latency_ns(answered) / NS_PER_MS
    settled = length > length.max() / NUM_PARTS  # the window is full, and the first frames are over
    used = trace.pool.blocks_used.to_numpy(dtype=int)[: len(answered)][settled]  # one sample per frame
    tenths = (scores.start // ((scores.start.max() + 1) / NUM_PARTS)).astype(int)
    nll = scores.value.groupby(tenths).mean().tolist()
    return {
        "point_id": point.point_id,
        "tokens": int(length.max()),
        "ended": str(frames.status.iloc[-1]),
        "blocks": [int(used.min()), int(used.max())],
        "latency_ms": [float(np.median(latency_ms)), float(np.quantile(latency_ms, 0.99))],
        "latency_slope_ms_per_1000_tokens": _slope(length[settled] / 1000, latency_ms[settled]),
        "perplexity_by_tenth": [float(np.exp(x)) for x in nll],
    }


def _slope(length: np.ndarray, latency_ms: np.ndarray) -> list[float]:
    size = max(1, min(_SLOPE_FRAMES, len(length) // 5))
    table = pd.DataFrame({"x": length, "y": latency_ms})
    medians = table.groupby(np.arange(len(table)) // size).median()
    return list(slope_interval(medians.x.to_numpy(), medians.y.to_numpy()))
