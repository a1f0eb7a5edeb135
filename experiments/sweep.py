"""A sweep is a list of points inside one configuration: one engine per KV mode, one trace for all."""

import contextlib
import dataclasses
import gc
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.enginelog import starting
from experiments.manifest import Manifest
from experiments.points import facts, make_backend
from experiments.progress import Columns, Progress, number
from experiments.said import Turns, make_turns
from experiments.schema import Run
from metronome.backends.base import Backend, EngineInfo
from metronome.control import Controller
from metronome.frames import NS_PER_MS, NS_PER_S, SessionSpec
from metronome.runtime import PointRun
from metronome.saturation import predict_t_sat_ns
from metronome.session import PeriodicSession
from metronome.stats import summarise
from metronome.trace import Trace, TraceWriter
from metronome.warning import make_forecaster
from metronome.window import Bound
from metronome.workload import HANG_UP_PERIODS

log = logging.getLogger(__name__)

COLUMNS: Columns = {
    "kv": lambda r: r["kv"],
    "N": lambda r: str(r["sessions"]),
    "outcome": lambda r: r["outcome"],
    "cause": lambda r: r["cause"] or "-",
    "t collapse": lambda r: number(r["t_collapse_s"], 1),
    "predicted t_sat": lambda r: number(r["predicted_t_sat_s"], 1),
    "ok/late/empty/lost": lambda r: "/".join(str(r["frames"][status]) for status in ("ok", "late", "empty", "lost")),
    "engine p50": lambda r: number(r["engine_latency_ms"]["p50"], 0),
    "p95": lambda r: number(r["engine_latency_ms"]["p95"], 0),
    "p99": lambda r: number(r["engine_latency_ms"]["p99"], 0),
    "front-end p99": lambda r: number(r["frontend_latency_ms"]["p99"], 0),
    "rho max": lambda r: number(r["rho_max"], 2),
}
CAPTION = (
    "latencies in ms, times in s; inf: frames that were never answered reach into the quantile; compute: the engine "
    "could not keep up with this load, try fewer workload.sessions or a longer workload.period_ms"
)
_DRAINED_S = 10.0  # a healthy engine frees ended sessions in milliseconds
_SWITCH_S = 0.001  # Python's 5 ms would let the trace's writer hold up a frame for half of what counts as late


@dataclass(frozen=True, slots=True)
class Point:
    mode: str
    kv: str  # its name in every table
    bound: Bound | None
    sessions: int
    batch: int = 0
    repeat: int | None = None  # where the point is run more than once
    case: str | None = None  # where models or workloads are compared

    @property
    def point_id(self) -> str:
        name = f"{self.kv}-n{self.sessions}" if self.case is None else f"{self.case}-{self.kv}-n{self.sessions}"
        return name if self.repeat is None else f"{name}-b{self.batch}-r{self.repeat}"

    @property
    def title(self) -> str:
        """What a person is told that runs."""
        return f"{self.point_id}, N={self.sessions}"

    @property
    def engine_key(self) -> tuple[str, int]:
        """Points of one key share an engine."""
        return self.mode, self.batch

    def workload_seed(self, run: Run) -> tuple[int, ...]:
        """Repeats differ in how long sessions last, and are the same in every KV mode."""
        return (run.workload.seed, self.batch, self.repeat or 0)


def make_points(run: Run) -> list[Point]:
    """All points, batch by batch and KV mode by KV mode, so that neighbours share an engine."""
    batches, runs = (run.repeat.batches, run.repeat.runs) if run.repeat else (1, None)
    return [
        Point(mode, run.kv_name(mode), run.bound(mode), num_sessions, batch, repeat)
        for batch in range(batches)
        for mode in run.kv.modes
        for num_sessions in run.workload.sessions
        for repeat in ([None] if runs is None else range(runs))
    ]


class Experiment:
    """Runs the points of one configuration into one run directory."""

    def __init__(self, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        self._run = run
        self._directory = directory
        self._manifest = manifest
        self._progress = progress
        self._backend: Backend | None = None
        self._engine_key: tuple[str, int] | None = None

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        """Results of all points, also written to the manifest as they come."""
        return await self._take_all(make_points(self._run), writer)

    async def _take_all(self, points: Sequence[Point], writer: TraceWriter) -> list[dict[str, Any]]:
        turns = self._hear(max(p.sessions for p in points))
        try:
            return [await self._take(point, turns, writer, i, len(points)) for i, point in enumerate(points)]
        finally:
            await self._stop_engine()

    async def _take(
        self, point: Point, turns: Turns, writer: TraceWriter, i: int, num_points: int | None
    ) -> dict[str, Any]:
        """One point, on the engine of the points before it where that is the right one and serves on."""
        if self._backend is None or point.engine_key != self._engine_key:
            await self._replace_engine(point)
        self._progress.start_point(i, num_points, point.title, self._run.workload)
        result = await self._run_point(point, turns, writer)
        self._manifest.add_point(result)
        self._progress.end_point(result)
        return result

    def _hear(self, num_lines: int) -> Turns:
        self._progress.note(f"reading {self._run.workload.says}")
        return make_turns(self._run, num_lines)

    async def _replace_engine(self, point: Point) -> None:
        await self._stop_engine()
        self._progress.note(f"starting the engine for {point.kv}")
        with starting(self._directory / "engine.log"):
            self._backend = make_backend(self._run, self._directory, point.mode, point.kv)
            await self._backend.start()
        self._engine_key = point.engine_key
        self._manifest.add_engine(kv=point.kv, **dataclasses.asdict(self._backend.info))

    async def _stop_engine(self) -> None:
        if self._backend:
            await self._backend.stop()
            self._backend = None

    def served(self, point: Point) -> dict[str, Any]:
        """The sessions, as the trace's points table has them."""
        workload, tokens = self._run.workload, self._run.frame_tokens
        seeded = workload.mean_lifetime_s is not None or workload.phases == "random"
        return {
            "workload": workload.name,
            "sessions": point.sessions,
            "burst_frames": workload.burst_frames,
            "silence_periods": workload.silence_periods,
            "repeat_idx": point.repeat,
            "phases": workload.phases,
            "mean_lifetime_ns": None if workload.mean_lifetime_s is None else int(workload.mean_lifetime_s * NS_PER_S),
            "workload_seed": point.workload_seed(self._run) if seeded else None,
            "turns_vary": self._run.model.turns_vary,
            "period_ns": workload.period_ms * NS_PER_MS,
            "deadline_ns": workload.deadline_ms * NS_PER_MS,
            "duration_ns": workload.duration_ns,
            "tokens_in": tokens.num_in,
            "tokens_out": tokens.num_out,
        }

    async def _run_point(self, point: Point, turns: Turns, writer: TraceWriter) -> dict[str, Any]:
        assert self._backend is not None
        run, info = self._run, self._backend.info
        specs = self.specs(point)
        tokens, period_ns = run.frame_tokens, run.workload.period_ns
        held = point.bound.held_tokens if point.bound else lambda n: n
        sink = writer.point(facts(run, point.point_id, info, point.bound, point.kv, **self.served(point)))
        shell = PointRun(
            [PeriodicSession(spec, tokens.num_in, held) for spec in specs],
            [turns[spec.line % len(turns)][spec.first_frame :][: spec.num_frames] for spec in specs],
            self._backend,
            sink,
            sample_ns=run.out.sample_ms * NS_PER_MS,
            drain_ns=HANG_UP_PERIODS * period_ns,
            forecaster=make_forecaster(period_ns, point.bound, tokens.num_in),
            controller=self.controller(point),
            observer=self._progress.observe,
            name=point.point_id,
        )
        with _undisturbed():
            await shell.run()
        if not await self._backend.drained(_DRAINED_S):
            log.warning("%s: the engine did not free its sessions; it is replaced", point.point_id)
            await self._stop_engine()
        return self.judge(point, specs, info, sink.trace())

    def specs(self, point: Point) -> list[SessionSpec]:
        """Who speaks when."""
        return self._run.workload.make_sessions(point.sessions, point.workload_seed(self._run))

    def controller(self, point: Point) -> Controller | None:
        """Who may come in; None: all."""
        return None

    def judge(self, point: Point, specs: Sequence[SessionSpec], info: EngineInfo, trace: Trace) -> dict[str, Any]:
        """The point's result, from its trace alone."""
        run, predicted_ns = self._run, self.predict(point, specs, info)
        return {
            "point_id": point.point_id,
            "model": run.model.name,
            "weights": run.model.weights,
            "kv": point.kv,
            "sessions": point.sessions,
            "predicted_t_sat_s": None if predicted_ns is None else predicted_ns / NS_PER_S,
            **dataclasses.asdict(summarise(trace)),
        }

    def predict(self, point: Point, specs: Sequence[SessionSpec], info: EngineInfo) -> int | None:
        """When the pool is full; None: never, or nobody can say."""
        if self._run.model.turns_vary:  # only odds can be given
            return None
        if point.mode in ("recycle", "own"):  # bounded by what is not the engine: never
            return None
        return predict_t_sat_ns(specs, self._run.frame_tokens, info.num_blocks, info.block_size, point.bound)


class Case(Experiment):
    """One of several configurations in one run; its name goes before those of its points, and is where its logs lie."""

    def __init__(self, name: str, run: Run, directory: Path, manifest: Manifest, progress: Progress) -> None:
        super().__init__(run, directory / "engines" / name, manifest, progress)
        self._directory.mkdir(parents=True)
        self._name = name

    async def execute(self, writer: TraceWriter) -> list[dict[str, Any]]:
        points = [dataclasses.replace(point, case=self._name) for point in make_points(self._run)]
        return await self._take_all(points, writer)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """While frames are due nothing is collected, and the trace's writer gives way at once.

    A collection walks all rows so far: after two minutes of hundreds of sessions it held up frames for 90 ms.
    """
    gc.collect()
    gc.disable()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.enable()
