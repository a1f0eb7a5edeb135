"""What all experiments say of a point, and how they start its engine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.manifest import hardware
from experiments.schema import Run, kv_name
from metronome.backends.base import Backend, EngineInfo
from metronome.backends.null import NullBackend
from metronome.backends.recycling import RecyclingBackend
from metronome.tables import PointFacts
from metronome.window import Bound

if TYPE_CHECKING:
    from metronome.backends.vllm_engine import EngineOptions


def policy_name(bound: Bound | None) -> str:
    """The same, where the positions of sinks are what is compared."""
    return f"{kv_name(bound)}-{bound.positions}" if bound else kv_name(bound)


def facts(
    run: Run, point_id: str, info: EngineInfo, bound: Bound | None, kv: str | None = None, **served: Any
) -> PointFacts:
    """served: the sessions, where there are any. kv: the mode's name, where the bound does not say it."""
    return PointFacts(
        point_id=point_id,
        experiment=run.name,
        engine=info.name,
        model=run.model.name,
        weights=run.model.weights,
        hardware=hardware(),
        kv=kv or kv_name(bound),
        window=bound.window if bound else None,
        sinks=bound.sinks if bound else None,
        positions=bound.positions if bound else None,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        engine_dtype=info.dtype,
        stream_fixes=info.stream_fixes,
        **served,
    )


def engine_options(
    run: Run, directory: Path, point_id: str, bound: Bound | None, max_model_len: int | None = None
) -> "EngineOptions":
    """Logs and the plugin's reports go into the run directory. max_model_len: instead of the configured one."""
    from metronome.backends.vllm_engine import EngineOptions  # seconds to import: only if used

    reports = directory / "plugin" / point_id
    reports.mkdir(parents=True, exist_ok=True)
    values = dataclasses.asdict(run.engine)
    if max_model_len is not None:
        values["max_model_len"] = max_model_len
    return EngineOptions(
        **values,
        bound={"window": bound.window, "sinks": bound.sinks, "positions": bound.positions} if bound else None,
        log_file=directory / "engine.log",
        report_dir=reports,
    )


def make_backend(run: Run, directory: Path, mode: str, kv: str) -> Backend:
    """The engine of one KV mode."""
    engine, tokens_out = run.engine, run.model.tokens_out
    if run.target.name == "null":
        return NullBackend(tokens_out=tokens_out, num_blocks=engine.num_blocks - 1, block_size=engine.block_size)
    if run.model.backend == "moshi_duplex":
        from metronome.backends.moshi_duplex import MoshiDuplexBackend  # seconds to import: only if used

        most = max(run.workload.sessions)
        return MoshiDuplexBackend(run.model.checkpoint, num_slots=most, block_size=engine.block_size, seed=engine.seed)
    from metronome.backends.vllm_stream import VllmStreamBackend  # likewise

    inner = VllmStreamBackend(run.model, engine_options(run, directory, kv, run.bound(mode)))
    if mode != "recycle":
        return inner
    assert run.kv.window is not None and run.kv.recycle_at is not None
    return RecyclingBackend(
        inner, window=run.kv.window, sinks=run.kv.sinks, limit=run.kv.recycle_at, tokens_out=tokens_out
    )
