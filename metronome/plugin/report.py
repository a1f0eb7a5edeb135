"""Where the bound is live: one small file per process, readable without vLLM."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any


def write(report_dir: str | None, role: str, **facts: Any) -> dict[str, Any]:
    """Describe this process, and leave it in `<report_dir>/<pid>-<role>.json` if given."""
    process = multiprocessing.current_process().name
    record = {"pid": os.getpid(), "process": process, "role": role, **facts}
    if report_dir is not None:
        folder = Path(report_dir)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{os.getpid()}-{role}.part"
        part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        part.replace(folder / f"{os.getpid()}-{role}.json")
    return record


def read(report_dir: str | Path) -> list[dict[str, Any]]:
    """Every report in `report_dir`: a bounded engine has at least one of each role."""
    return [json.loads(path.read_text()) for path in sorted(Path(report_dir).glob("*.json"))]


def sentence(record: dict[str, Any]) -> str:
    """One line for the log: who runs which bound."""
    size = record["block_size"]
    return (
        f"pid {record['pid']} ({record['process']}), {record['role']} {record['class']}, "
        f"window {record['window']} tokens = {record['window_blocks']} blocks of {size}, "
        f"sinks {record['sinks']} tokens = {record['sink_blocks']} blocks, "
        f"positions {record['positions']}, vLLM {record['vllm']}"
    )
