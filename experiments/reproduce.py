"""Everything, in order: each experiment that a figure needs, then the figures and the claims table.

    python -m experiments.reproduce [--dir runs/reproduce] [--only cliff_sweep,saturation] [--dry-run]

Run it again to go on: an experiment whose run is complete is skipped, one that was cut short is set aside and run anew.
Nothing else may use the machine meanwhile. Minutes are those of two cores (conf/exp/*.yaml).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.catalogue import Entry, entries

_EXIT_INTERRUPTED = 130
_NO_FIGURE = {"smoke"}  # shows what the cliff sweep shows, in small
Command = Callable[[Sequence[str]], int]  # runs a program and returns its exit code


def run_program(command: Sequence[str]) -> int:
    """Ctrl-C reaches the program too, and it is left to end its engine: subprocess.run would kill it after 0.25 s."""
    program = subprocess.Popen(command)
    try:
        return program.wait()
    except KeyboardInterrupt:
        program.wait()
        raise


def main(argv: list[str] | None = None, run: Command = run_program) -> int:
    args = _parse(argv)
    chosen = _choose(args.only)
    todo = [entry for entry in chosen if not is_complete(args.dir / entry.name)]
    print(_plan(chosen, todo, args.dir))
    if args.dry_run:
        return 0
    try:
        failed = _run_all(todo, args.dir, run)
    except KeyboardInterrupt:
        print("reproduce: interrupted; run the same command again to go on", file=sys.stderr)
        return _EXIT_INTERRUPTED
    done = [entry.name for entry in chosen if is_complete(args.dir / entry.name)]
    failed += _draw(done, args.dir, run)
    print(f"reproduce: {len(done)} of {len(chosen)} experiments complete" + (f"; failed: {failed}" if failed else ""))
    return bool(failed)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("runs/reproduce"), help="where runs and results go")
    parser.add_argument("--only", default="", help="names of experiments, with commas between")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and how long it takes")
    return parser.parse_args(argv)


def _choose(only: str) -> list[Entry]:
    known = {entry.name: entry for entry in entries() if entry.name not in _NO_FIGURE}
    names = [name for name in only.split(",") if name]
    for name in names:
        if name not in known:
            raise SystemExit(f"--only={only}: no experiment {name!r}; there are {', '.join(known)}")
    return [entry for entry in known.values() if not names or entry.name in names]


def is_complete(directory: Path) -> bool:
    manifest = directory / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["status"] == "complete"


def _plan(chosen: list[Entry], todo: list[Entry], directory: Path) -> str:
    lines = [f"reproduce: {len(chosen)} experiments into {directory}"]
    for entry in chosen:
        state = f"{entry.minutes:>3} min" if entry in todo else "complete"
        lines.append(f"  {entry.name:<14} {state:<8}  {entry.about}")
    lines.append(
        f"about {_minutes(todo)} on two quiet cores, less where there are more; results, figures and claims last"
    )
    return "\n".join(lines)


def _minutes(todo: list[Entry]) -> str:
    total = sum(entry.minutes for entry in todo)
    return f"{total // 60} h {total % 60:02} min" if total >= 60 else f"{total} min"


def _run_all(todo: list[Entry], directory: Path, run: Command) -> list[str]:
    """Names of those that failed; one that fails does not keep the others from running."""
    failed = []
    for number, entry in enumerate(todo):
        left = _minutes(todo[number:])
        print(
            f"reproduce: {number + 1} of {len(todo)}, {entry.name}, about {entry.minutes} min; {left} left", flush=True
        )
        _set_aside(directory / entry.name)
        started = time.monotonic()
        out = f"out.dir={directory / entry.name}"
        code = run([sys.executable, "-m", "experiments.run", f"+exp={entry.name}", out])
        print(
            f"reproduce: {entry.name} ended with {code} after {(time.monotonic() - started) / 60:.0f} min", flush=True
        )
        if code:
            failed.append(entry.name)
    return failed


def _set_aside(run_dir: Path) -> None:
    """What a run that was cut short did measure is kept, under another name."""
    if not run_dir.exists():
        return
    kept = next(p for i in range(1, 1000) if not (p := run_dir.with_name(f"{run_dir.name}.cut{i}")).exists())
    run_dir.rename(kept)
    print(f"reproduce: {run_dir} was cut short; kept as {kept}")


def _draw(done: list[str], directory: Path, run: Command) -> list[str]:
    """Figures of each complete run, and the claims from all of them; the steps that failed."""
    if not done:
        return []
    runs, results = [str(directory / name) for name in done], str(directory / "results")
    figures = [sys.executable, "-m", "figures"]
    failed = [f"figures of {path}" for path in runs if run([*figures, "--data", path, "--out", results])]
    if run([*figures, "claims", "--data", *runs, "--out", results]):
        failed.append("claims")
    print(f"reproduce: figures, CLAIMS.md and claims.json lie in {results}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
