"""The `metronome` command."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from metronome.backends.base import EngineInfo
from metronome.models import ModelProfile
from metronome.plugin import report
from metronome.window import Bound

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Real-time sessions on a bounded KV cache.")


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="checkpoint directory or hub id")] = ".cache/smollm2",
    window: Annotated[int, typer.Option(help="recent tokens a session keeps")] = 512,
    sinks: Annotated[int, typer.Option(help="first tokens a session keeps")] = 4,
    positions: Annotated[str, typer.Option(help="of sink keys: anchor or keep")] = "anchor",
    num_blocks: Annotated[int, typer.Option(help="blocks of the pool")] = 150,
    block_size: Annotated[int, typer.Option(help="tokens per block")] = 32,
    max_model_len: Annotated[int, typer.Option(help="tokens; with the bound it need not fit the pool")] = 4096,
    frame_tokens: Annotated[int, typer.Option(help="most tokens a frame brings at once")] = 50,
) -> None:
    """Start the engine with the bound; say in which processes it is live and how many sessions its pool holds."""
    try:
        bound = Bound(window=window, sinks=sinks, positions=positions, block_size=block_size)
        info = _start(model, bound, num_blocks, max_model_len)
    except (RuntimeError, ValueError) as error:
        typer.echo(f"refused: {error}{_hint(error)}", err=True)
        raise typer.Exit(1) from error
    for line in describe(info, bound, frame_tokens):
        typer.echo(line)


@app.command()
def forecast(
    data: Annotated[Path, typer.Argument(help="run directory, or directory of golden traces")],
    told_bound: Annotated[bool, typer.Option(help="tell the forecast what a bounded session can hold")] = True,
) -> None:
    """Replay the early warning on recorded runs: how long before each collapse it came, and where it came in vain."""
    from metronome import trace, warning  # pandas: not for the other commands

    try:
        experiments = trace.find_experiments(data)
        found = [
            (experiment, warning.evaluate(whole.of(point_id), told_bound=told_bound))
            for experiment in experiments
            for whole in [trace.read(data, experiment)]
            for point_id in whole.points[whole.points.duration_ns.notna()].point_id
        ]
    except ValueError as error:
        typer.echo(f"refused: {error}", err=True)
        raise typer.Exit(1) from error
    for experiment, run in found:
        ended = "survived" if run.cause is None else f"collapsed ({run.cause})"
        lead = "-" if run.lead_periods is None else f"{run.lead_periods:.1f} periods ahead"
        typer.echo(f"{experiment:14} {run.point_id:28} {ended:22} alarms {run.num_alarms}  {lead}")
    for line in warning.conclude([run for _, run in found]):
        typer.echo(line)


def _hint(error: Exception) -> str:
    """What to do where vLLM itself cannot be imported."""
    if "torchvision::" not in str(error):
        return ""
    return (
        "; torchvision is built for CUDA here: run scripts/torchvision_on_cpu.py of the repository with this Python, "
        "or uninstall torchvision"
    )


def _start(model: str, bound: Bound, num_blocks: int, max_model_len: int) -> EngineInfo:
    from metronome.backends.vllm_engine import EngineOptions, VllmEngine  # seconds to import

    profile = ModelProfile(
        name=model, checkpoint=model, weights="real", tokens_per_second=25, tokens_out=1, kv_bytes_per_token=0
    )
    with tempfile.TemporaryDirectory() as folder:
        options = EngineOptions(
            num_blocks=num_blocks,
            block_size=bound.block_size,
            max_model_len=max_model_len,
            max_num_seqs=16,
            max_num_batched_tokens=256,
            bound={"window": bound.window, "sinks": bound.sinks, "positions": bound.positions},
            report_dir=Path(folder),
        )
        engine = VllmEngine(profile, options)
        try:
            engine.start()
            return engine.info()
        finally:
            engine.stop()


def describe(info: EngineInfo, bound: Bound, frame_tokens: int) -> list[str]:
    """What an engine with this bound is, line by line."""
    assert info.block_bytes is not None
    blocks = bound.max_blocks(frame_tokens)
    return [
        "versions: " + ", ".join(f"{name} {version}" for name, version in sorted(info.versions.items())),
        *(f"live: {report.sentence(record)}" for record in info.bound_live_in),
        f"dtype: {info.dtype}",
        f"window: {bound.window} tokens, kept in whole blocks of {bound.block_size}",
        f"sinks: {bound.sinks} tokens = {bound.num_sink_blocks} blocks, positions {bound.positions}",
        f"a session holds at most {blocks} blocks = {blocks * info.block_bytes / 2**20:.2f} MiB, "
        f"with frames of up to {frame_tokens} tokens",
        f"the pool of {info.num_blocks} usable blocks holds {info.num_blocks // blocks} sessions, for ever",
    ]
