"""Writing and reading traces: one writer off the hot path, one strict reader. What they hold: metronome.tables."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from metronome.frames import Decision, FrameRecord, PoolSample
from metronome.tables import SCHEMA_VERSION, SCHEMAS, PointFacts, Score


class TraceWriter:
    """Collects rows in memory and writes them from a thread of its own, in parts that are renamed into place.

    A kill loses at most the last `part_s` seconds. An error of the thread is raised at the next call.
    """

    def __init__(self, directory: Path, run_id: str, part_s: float = 2.0) -> None:
        self._directory = directory
        self._run_id = run_id
        self._part_s = part_s
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._num_parts = dict.fromkeys(SCHEMAS, 0)
        self._lock = threading.Lock()  # guards _rows: held for moments, also by the hot path
        self._writing = threading.Lock()  # guards the files
        self._closing = threading.Event()
        self._error: OSError | pa.ArrowException | None = None
        self._thread = threading.Thread(target=self._write_parts, name="trace-writer", daemon=True)

    def __enter__(self) -> "TraceWriter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._raise()

    def point(self, facts: PointFacts) -> "PointSink":
        """Record what the point is; the sink takes what happens in it."""
        sink = PointSink(self, self._run_id, facts)
        self._flush()  # now, not while frames are due: the first write of a process takes 20 ms
        return sink

    def add(self, table: str, row: dict[str, Any]) -> None:
        self._raise()
        with self._lock:
            self._rows[table].append(row)

    def _raise(self) -> None:
        if self._error:
            raise RuntimeError(f"the trace in {self._directory} cannot be written: {self._error}") from self._error

    def _write_parts(self) -> None:
        try:
            while not self._closing.wait(self._part_s):
                self._flush()
            self._flush()
        except (OSError, pa.ArrowException) as error:
            self._error = error

    def _flush(self) -> None:
        with self._writing:
            with self._lock:
                taken, self._rows = self._rows, {name: [] for name in SCHEMAS}
            for name, rows in taken.items():
                if rows:
                    part = self._directory / name / f"part-{self._num_parts[name]:05d}.parquet"
                    part.parent.mkdir(parents=True, exist_ok=True)
                    write_table(pa.Table.from_pylist(rows, schema=SCHEMAS[name]), part)
                    self._num_parts[name] += 1


class PointSink:
    """Takes the records of one point, for the writer and for a look at the point once it is over."""

    def __init__(self, writer: TraceWriter, run_id: str, facts: PointFacts) -> None:
        self._writer = writer
        self._ids = {"run_id": run_id, "point_id": facts.point_id}
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._add("points", asdict(facts))

    def frame(self, record: FrameRecord) -> None:
        self._add("frames", asdict(record))

    def pool(self, sample: PoolSample) -> None:
        self._add("pool", asdict(sample))

    def decision(self, decision: Decision) -> None:
        self._add("decisions", asdict(decision))

    def score(self, score: Score) -> None:
        self._add("scores", asdict(score))

    def _add(self, table: str, values: dict[str, Any]) -> None:
        row = self._ids | values
        self._rows[table].append(row)
        self._writer.add(table, row)

    def trace(self) -> "Trace":
        """The point so far, as `read` would give it."""
        tables = {name: pa.Table.from_pylist(rows, schema=SCHEMAS[name]) for name, rows in self._rows.items()}
        return _sorted_trace({name: _to_pandas(table) for name, table in tables.items()})


def write_table(table: pa.Table, path: Path) -> None:
    """Write under a temporary name, then rename: a reader never sees half a file."""
    part = path.with_suffix(".tmp")
    pq.write_table(table, part, compression="zstd")
    part.rename(path)


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as read back; each frame of data has the columns of its schema."""

    points: pd.DataFrame
    frames: pd.DataFrame
    pool: pd.DataFrame
    scores: pd.DataFrame
    decisions: pd.DataFrame

    def of(self, point_id: str) -> "Trace":
        """The rows of one point, frames by release and samples by time."""
        return Trace(
            *(
                table[table.point_id == point_id].reset_index(drop=True)
                for table in (self.points, self.frames, self.pool, self.scores, self.decisions)
            )
        )


def join(traces: Sequence[Trace]) -> Trace:
    """The points of all of them."""
    tables = {name: pd.concat([getattr(t, name) for t in traces], ignore_index=True) for name in SCHEMAS}
    return _sorted_trace(tables)


def read(data: Path, experiment: str) -> Trace:
    """A run directory, or a directory of golden files named `<experiment>.<table>.parquet`, `....0.parquet` in parts.

    Raises ValueError, with the command that makes the data, where it is missing or not of this schema and experiment.
    """
    tables = {name: _read_table(data, experiment, name) for name in SCHEMAS}
    others = set(tables["points"].experiment) - {experiment}
    if others:
        raise ValueError(f"{data} holds {', '.join(sorted(others))}, not {experiment}; {_how_to_make(experiment)}")
    return _sorted_trace(tables)


def find_experiments(data: Path) -> list[str]:
    """Names of the experiments in a run directory or a directory of golden files. Raises ValueError without any."""
    golden = sorted(path.name.split(".")[0] for path in data.glob("*.points.parquet"))
    parts = sorted((data / "points").glob("*.parquet"))
    names = golden or sorted({name for part in parts for name in pq.read_table(part)["experiment"].to_pylist()})
    if not names:
        raise ValueError(f"{data}: holds no traces; give a run directory, or data/golden")
    return names


def _sorted_trace(tables: Mapping[str, pd.DataFrame]) -> Trace:
    return Trace(
        points=tables["points"],
        frames=tables["frames"].sort_values(["release_ns", "session_id"], ignore_index=True),
        pool=tables["pool"].sort_values("t_ns", ignore_index=True, kind="stable"),
        scores=tables["scores"],
        decisions=tables["decisions"].sort_values("t_ns", ignore_index=True, kind="stable"),
    )


def _how_to_make(experiment: str) -> str:
    return f"make it with: python -m experiments.run +exp={experiment}"


def _read_table(data: Path, experiment: str, name: str) -> pd.DataFrame:
    golden = sorted([*data.glob(f"{experiment}.{name}.parquet"), *data.glob(f"{experiment}.{name}.[0-9].parquet")])
    parts = golden or sorted((data / name).glob("*.parquet"))
    if not parts and name == "points":
        raise ValueError(f"{data} has no {name} of {experiment}; {_how_to_make(experiment)}")
    for part in parts:
        schema = pq.read_schema(part)
        version = (schema.metadata or {}).get(b"metronome_schema")
        if version != str(SCHEMA_VERSION).encode() or not schema.equals(SCHEMAS[name]):
            raise ValueError(f"{part}: not a {name} table of schema {SCHEMA_VERSION}; {_how_to_make(experiment)}")
    return _to_pandas(pa.concat_tables([SCHEMAS[name].empty_table(), *(pq.read_table(part) for part in parts)]))


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame
