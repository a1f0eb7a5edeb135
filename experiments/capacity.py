"""How many sessions: what memory alone allows, the slope of latency over N, and N* by bisection with repeats."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments import sweep
from experiments.closed_loop import ClosedCall
from experiments.points import facts
from experiments.progress import Columns, number, spread
from experiments.sections import Capacity
from metronome.backends.base import Backend, EngineInfo
from metronome.capacity import Bracket, estimate, find_ceiling, find_n_star, keeps, ladder_levels, measure, spearman
from metronome.frames import NS_PER_MS, NS_PER_S, FrameStatus, SessionSpec
from metronome.saturation import idle_ceiling
from metronome.trace import PointSink, Trace, TraceWriter, join

log = logging.getLogger(__name__)

COLUMNS: Columns = {
    "kv": lambda r: r["kv"],
    "N*": lambda r: spread(r["n_star"], 1),
    "repeats": lambda r: ", ".join(map(str, r["n_star_repeats"])),
    "Spearman(N, p95)": lambda r: number(r["spearman"], 3),
    "p95 by N (ms)": lambda r: " ".join(f"{n}:{p95:.0f}" for n, p95, _ in r["levels"]),
    "utilisation": lambda r: " ".join(f"{u:.2f}" for _, _, u in r["levels"]),
    "ceiling": lambda r: ", ".join(map(str, r["ceiling"])),
    "predicted": lambda r: number(r["predicted_ceiling"], 0),
}
CAPTION = (
    "N*: largest N with p95 below its share of the deadline and at most 1 % late, mean of the repeats with its 95 % "
    "interval; utilisation: mean service time / period; ceiling: idle sessions that the pool held"
)
_SILENCE_S = 8.0  # an idle engine that does not answer a frame for this long has no room for it
_DRAINED_S = 20.0
_WAVE = 16  # sessions that speak at once, at most, while the pool is far from full


class Experiment(sweep.Experiment):
    """The pool filled with idle sessions, a ladder of N, then the search for N* within it, once per repeat."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self._run.capacity is not None
        self._capacity: Capacity = self._run.capacity
        self._traces: list[Trace] = []
        self._num_taken = 0

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        ladder = [dataclasses.replace(p, repeat=0) for p in sweep.make_points(self._run)]
        turns = self._hear(max(p.sessions for p in ladder))
        first = ladder[0]
        try:
            for repeat in range(self._capacity.ceilings):
                await self._fill(dataclasses.replace(first, repeat=repeat), turns, writer)
            for point in ladder:
                await self._try(point, turns, writer)
            low, high = 0, max(p.sessions for p in ladder)
            for repeat in range(self._capacity.repeats):
                low, high = await self._search(first, repeat, low, high, turns, writer)
        finally:
            await self._stop_engine()
        result = conclude(self._traces)
        self._manifest.conclude([result])
        return [result]

    async def _search(
        self, point: sweep.Point, repeat: int, low: int, high: int, turns: sweep.Turns, writer: TraceWriter
    ) -> tuple[int, int]:
        """Where the next repeat may start from. What is known of this repeat already, its ladder, counts."""
        bracket = Bracket(low, high)
        for trace in self._traces:
            one = trace.points.iloc[0]
            if one.repeat_idx == repeat and pd.notna(one.sessions):
                bracket.tell(int(one.sessions), keeps(one, trace.frames))
        while (sessions := bracket.next()) is not None:
            if sessions > self._run.engine.max_num_seqs:
                log.warning("N* is above engine.max_num_seqs: raise it")
                break
            tried = dataclasses.replace(point, sessions=sessions, repeat=repeat)
            bracket.tell(sessions, await self._try(tried, turns, writer))
        margin = max(1, round(0.06 * bracket.high))
        return max(bracket.low - margin, 0), bracket.high + margin

    async def _try(self, point: sweep.Point, turns: sweep.Turns, writer: TraceWriter) -> bool:
        """Whether so many are served in time."""
        self._num_taken += 1
        result = await self._take(point, turns, writer, self._num_taken - 1, None)
        return bool(result["served"])

    def served(self, point: sweep.Point) -> dict[str, Any]:
        own = {
            "warm_up_ns": int(self._capacity.warm_up_s * NS_PER_S),
            "target_fraction": self._capacity.target_fraction,
        }
        return super().served(point) | own

    def judge(self, point: sweep.Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        self._traces.append(trace)
        level = measure(trace.points.iloc[0], trace.frames)
        mine = {"late_share": level.late_share, "utilisation": level.utilisation, "p95_ms": level.p95_ns / NS_PER_MS}
        served = keeps(trace.points.iloc[0], trace.frames)
        return super().judge(point, specs, info, trace) | mine | {"served": served}

    async def _fill(self, point: sweep.Point, turns: sweep.Turns, writer: TraceWriter) -> None:
        """Sessions speak a few frames each and stay on the line, until one finds no room."""
        if self._backend is None:
            await self._replace_engine(point)
        assert self._backend is not None
        info, run, num_frames = self._backend.info, self._run, self._capacity.ceiling_frames
        tokens = run.frame_tokens
        served = {
            "repeat_idx": point.repeat,
            "deadline_ns": run.workload.deadline_ms * NS_PER_MS,
            "tokens_in": tokens.num_in,
            "tokens_out": tokens.num_out,
        }
        name = f"{point.kv}-ceiling-r{point.repeat}"
        sink = writer.point(facts(run, name, info, point.bound, **served))
        self._progress.note(f"{name}: filling the pool with idle sessions")
        expected = idle_ceiling(tokens, num_frames, info.num_blocks, info.block_size, point.bound)
        calls = _Calls(self._backend, sink, name, run.workload.deadline_ms * NS_PER_MS, point)
        speech = [turns[i % len(turns)][:num_frames] for i in range(run.engine.max_num_seqs)]
        await calls.fill(speech, expected)
        await calls.hang_up()
        if not await self._backend.drained(_DRAINED_S):
            await self._stop_engine()
        self._traces.append(sink.trace())


class _Calls:
    """Idle sessions, more and more."""

    def __init__(self, backend: Backend, sink: PointSink, name: str, deadline_ns: int, point: sweep.Point) -> None:
        self._backend, self._sink, self._name = backend, sink, name
        self._deadline_ns, self._bound = deadline_ns, point.bound
        self._origin_ns = time.monotonic_ns()
        self._calls: list[ClosedCall] = []

    async def fill(self, speech: Sequence[Sequence[Sequence[int]]], expected: int) -> None:
        """One session for each of `speech`, or until one is not answered. Near the `expected` number one by one."""
        while len(self._calls) < len(speech):
            num = min(max((expected - len(self._calls)) // 2 - 1, 1), _WAVE)
            wave = speech[len(self._calls) : len(self._calls) + num]
            if not all(await asyncio.gather(*(self._say(frames) for frames in wave))):
                return

    async def _say(self, frames: Sequence[Sequence[int]]) -> bool:
        session_id = len(self._calls)
        call = ClosedCall(
            self._backend,
            f"{self._name}-{session_id}",
            session_id=session_id,
            deadline_ns=self._deadline_ns,
            bound=self._bound,
            silence_s=_SILENCE_S,
            origin_ns=self._origin_ns,
        )
        self._calls.append(call)
        for ids in frames:
            record = await call.say(ids)
            self._sink.frame(record)
            self._sink.pool(self._backend.sample(call.now_ns()))
            if record.status not in (FrameStatus.OK, FrameStatus.LATE):
                return False
        return True

    async def hang_up(self) -> None:
        for call in self._calls:
            await call.hang_up()


def conclude(traces: Sequence[Trace]) -> dict[str, Any]:
    """What all points together say, from their traces."""
    trace = join(traces)
    found = find_n_star(trace)
    n_star = estimate(found)
    ladder = ladder_levels(trace)
    ceilings = [find_ceiling(trace.of(p)) for p in trace.points[trace.points.sessions.isna()].point_id]
    return {
        "kv": trace.points.kv.iloc[0],
        "n_star": [n_star.mean, n_star.low, n_star.high],
        "n_star_repeats": found,
        "spearman": spearman(ladder),
        "levels": [[x.sessions, x.p95_ns / NS_PER_MS, x.utilisation] for x in ladder],
        "ceiling": [c.measured for c in ceilings],
        "predicted_ceiling": ceilings[0].predicted if ceilings else None,
    }
