"""manifest.json: what was run, with what, and what came of each point. Strict JSON: infinity is written as a string."""

import dataclasses
import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.schema import Run

_ROOT = Path(__file__).parent.parent


def to_plain(run: Run) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(run), default=str))


def config_hash(run: Run) -> str:
    """Identifies what would be measured: where the results go is left out."""
    values = to_plain(run)
    del values["out"]["dir"]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def hardware() -> str:
    """The machine in a few words, for tables and figures."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {cpu}"


def _git(*args: str) -> str | None:
    done = subprocess.run(["git", *args], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class Manifest:
    """Rewritten whole at every change, so that a reader always finds a complete file."""

    def __init__(self, directory: Path, run: Run, run_id: str) -> None:
        self._path = directory / "manifest.json"
        status = _git("status", "--porcelain")
        self._values: dict[str, Any] = {
            "run_id": run_id,
            "experiment": run.name,
            "status": "running",
            "started_at": _now(),
            "ended_at": None,
            "config": to_plain(run),
            "config_hash": config_hash(run),
            "commit": _git("rev-parse", "HEAD"),
            "dirty": None if status is None else bool(status),
            "python": platform.python_version(),
            "hardware": hardware(),
            "engines": [],
            "points": [],
        }
        self._write()

    def add_engine(self, **facts: Any) -> None:
        """An engine was started: what it really runs with."""
        self._values["engines"].append(facts)
        self._write()

    def add_point(self, result: Mapping[str, Any]) -> None:
        self._values["points"].append(dict(result))
        self._write()

    def conclude(self, results: Sequence[Mapping[str, Any]]) -> None:
        """What all points together say."""
        self._values["results"] = [dict(r) for r in results]
        self._write()

    def close(self, status: str, error: str | None = None) -> None:
        """status: complete, interrupted or failed."""
        self._values |= {"status": status, "ended_at": _now()} | ({"error": error} if error else {})
        self._write()

    def _write(self) -> None:
        part = self._path.with_suffix(".tmp")
        part.write_text(json.dumps(_strict(self._values), indent=1, allow_nan=False) + "\n")
        part.rename(self._path)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "inf": JSON has no such number
    if isinstance(value, Mapping):
        return {key: _strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
