"""The door: compose, check, run, write.

python -m experiments.run +exp=cliff_sweep workload.sessions=[8,12]
"""

import asyncio
import importlib
import logging
import signal
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments import catalogue, schema
from experiments.enginelog import EngineFailed
from experiments.machine import alone
from experiments.manifest import Manifest, config_hash

OmegaConf.register_new_resolver("experiments", catalogue.listing, replace=True)  # for --help

_EXIT_FAILED, _EXIT_REFUSED, _EXIT_INTERRUPTED = 1, 2, 130


@hydra.main(version_base="1.3", config_path="conf", config_name="run")
def main(config: DictConfig) -> None:
    try:
        _check_launcher()
        run = schema.load(config)
        directory = make_run_dir(run)
    except schema.ConfigError as error:
        _end(f"refused: {error}", _EXIT_REFUSED)

    try:
        _execute(run, directory)
    except EngineFailed as error:
        _end(f"failed: {error}", _EXIT_FAILED)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; what there is lies in {directory}\n")
        sys.exit(_EXIT_INTERRUPTED)


def _check_launcher() -> None:
    """Without -m Hydra runs one job itself and leaves the launcher out in silence."""
    launcher = HydraConfig.get().runtime.choices["hydra/launcher"]
    if launcher != "basic" and HydraConfig.get().mode != RunMode.MULTIRUN:
        raise schema.ConfigError(f"hydra/launcher={launcher}: launches the jobs of a multirun; add -m")


def _end(said: str, code: int) -> NoReturn:
    """A job of a multirun fails with what is said, which its launcher carries home; a run of its own exits."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        raise CompactHydraException(said)
    sys.stderr.write(f"{said}\n")
    sys.exit(code)


def _execute(run: schema.Run, directory: Path) -> None:
    from experiments.progress import Progress
    from metronome.trace import TraceWriter

    logging.basicConfig(
        filename=directory / "run.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,  # jobs of a multirun may share a process
    )
    run_id = f"{run.name}-{directory.name}-{config_hash(run)}"
    manifest = Manifest(directory, run, run_id)
    # What the harness alone costs is nobody's measurement but its own.
    turn = nullcontext() if run.target.name == "null" else alone()
    try:
        with turn, Progress() as progress, TraceWriter(directory, run_id) as writer:
            experiment = _module(run)
            results = asyncio.run(experiment.Experiment(run, directory, manifest, progress).execute(writer))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):  # a launcher sends a job the Ctrl-C that the terminal has sent it too
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        logging.getLogger(__name__).error("the run ended early", exc_info=True)  # a launcher brings home no traceback
        manifest.close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", repr(error))
        raise
    manifest.close("complete")
    model = "" if run.generality else f" {run.model.name} ({run.model.weights} weights)"
    engine = "transformers" if run.model.backend == "moshi_duplex" else run.target.name
    title = f"{run.name}:{model} on {engine}"
    progress.table(results, experiment.COLUMNS, title, experiment.CAPTION)
    sys.stdout.write(f"written to {directory}\n")


def _module(run: schema.Run) -> ModuleType:
    """What runs it: a module of its own where a run is more than a sweep of sessions."""
    sections = {
        "sink_ablation": run.ablation,
        "long_call": run.long_call,
        "metastability": run.repeat,
        "saturation": run.saturation,
        "capacity": run.capacity,
        "overload": run.admission and run.admission.steps,
        "admission": run.admission,
        "generality": run.generality,
        "session_age": run.session_age,
        "recycling": "recycle" in run.kv.modes,
    }
    name = next((name for name, section in sections.items() if section), "sweep")
    return importlib.import_module(f"experiments.{name}")


def make_run_dir(run: schema.Run) -> Path:
    """A directory that no other run has: exclusive, so that two shells never share one."""
    if run.out.dir:
        try:
            run.out.dir.mkdir(parents=True, exist_ok=False)
        except FileExistsError as error:
            raise schema.ConfigError(
                f"out.dir={run.out.dir}: exists already; name a new directory, in a multirun one per job, e.g. "
                "'out.dir=runs/mine/${hydra:job.num}'"
            ) from error
        return run.out.dir
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for suffix in ("", *(f"-{i}" for i in range(2, 100))):
        directory = Path("runs") / run.name / f"{stamp}{suffix}"
        try:
            directory.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        return directory
    raise schema.ConfigError(f"runs/{run.name}/{stamp}-*: all taken; name one with out.dir=...")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # while a launcher waited for its jobs
        sys.exit(_EXIT_INTERRUPTED)
