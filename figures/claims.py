"""The claims table: what the paper claims, what committed traces say, and the verdict that follows by rule.

    python -m figures claims [--data data/golden ...] [--out docs] [--check]

Writes CLAIMS.md and claims.json. A verdict is never typed: each claim has criteria (figures/evidence_*.py), and is
"reproduced" if all hold, "partly" if some do, "not" if none does, "not tested" where no trace can tell.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import evidence_bound, evidence_cliff
from figures.evidence import Evidence, Judge
from metronome import trace
from metronome.stats import MAX_HARNESS_LATE, count_harness_late
from metronome.trace import Trace

RULE = (
    "**Verdict, by rule:** *reproduced* if all criteria of a claim hold on the committed trace, *partly* if some do, "
    "*not* if none does, *not tested* where no trace can tell. Nothing on this page is typed by hand."
)


@dataclass(frozen=True)
class Claim:
    """paper: its own figure, where this project knows one."""

    id: str
    text: str
    paper: str
    experiment: str
    judge: Judge


CLAIMS = (
    Claim("C1", "Unbounded, latency is flat and then one step to a stalled engine.", "ms to about 1.6 s", "cliff_sweep",
          evidence_cliff.one_step_to_a_stall),
    Claim("C2", "The collapse is silent: front-end metrics read healthy while spoken output stops.", "-", "cliff_sweep",
          evidence_cliff.silent),
    Claim("C3", "It is metastable: identical runs collapse or survive.", "14 of 20", "metastability",
          evidence_cliff.metastable),
    Claim("C4", "With a window on the KV cache it never collapses.", "0 of 20", "metastability",
          evidence_cliff.never_collapses),
    Claim("C5", "rho(t) = rho0 + N r t predicts when.", "a few % to about 13 %", "saturation", evidence_cliff.predicts),
    Claim("C6", "Bounded, latency rises monotonically with N.", "-", "capacity", evidence_bound.is_a_slope),
    Claim("C7", "Bounded, the deadline binds before memory.", "N* about 209, memory about 500", "capacity_tiny",
          evidence_bound.deadline_binds_first),
    Claim("C8", "AIMD converges to N* on the bounded engine.", "N* about 209", "admission",
          evidence_bound.controller_finds),
    Claim("C9", "The same controller over-admits into the wall on the unbounded engine.", "-", "admission",
          evidence_bound.controller_hits_the_wall),
    Claim("C10", "Sinks are not needed for per-turn decoding, and essential for free generation.", "-", "sink_ablation",
          evidence_bound.sinks_matter_free_only),
    Claim("C11", "The cliff is architectural: four models of different size and design meet it.", "four models",
          "generality",
          evidence_cliff.every_model),
    Claim("C12", "A window in the engine avoids what recycling in the application pays.", "-", "recycling",
          evidence_bound.recycling_costs),
    Claim("C13", "A bound per session is a serving parameter; max_model_len is a border to crash at.", "-", "long_call",
          evidence_bound.bound_instead_of_border),
    Claim("C14", "It serves any real-time loop with growing state: agents, video (stateful RAG is not tested).",
          "discussion only", "generality", evidence_cliff.other_loads),
)  # fmt: skip


def judge(claim: Claim, folders: Sequence[Path]) -> dict[str, Any]:
    """One row of the table, as claims.json has it; ValueError only for traces that cannot be read."""
    row: dict[str, Any] = {
        "id": claim.id,
        "claim": claim.text,
        "paper": claim.paper,
        "command": f"python -m experiments.run +exp={claim.experiment}",
        "simulated": None,  # until there is a simulator
    }
    data = next((folder for folder in folders if _holds(folder, claim.experiment)), None)
    if data is None:
        return row | {"verdict": "not tested", "measured": None, "on": None, "runs": [], "criteria": {}}
    found = trace.read(data, claim.experiment)
    try:
        said = claim.judge(found)
        if late := sent_late(found, said.of):
            raise ValueError(f"the load generator was late in {', '.join(late)}")
    except ValueError as error:  # such as a run that ended before what is claimed could come
        said = Evidence(f"this run cannot tell: {error}", {})
    criteria = {text: bool(holds) for text, holds in said.criteria.items()}
    return row | {
        "verdict": verdict(said),
        "measured": said.measured,
        "on": measured_on(found, said.of),
        "runs": sorted(set(found.points.run_id)),
        "criteria": criteria,
    }


def _holds(folder: Path, experiment: str) -> bool:
    """Whether a folder of traces, or a run's directory, has this experiment."""
    manifest = folder / "manifest.json"
    if manifest.exists():
        return bool(json.loads(manifest.read_text())["experiment"] == experiment)
    return bool(list(folder.glob(f"{experiment}.points*.parquet")))


def sent_late(found: Trace, of: list[str] | None = None) -> list[str]:
    """Points that say nothing of the engine (`MAX_HARNESS_LATE`), where frames are due and sends were kept."""
    late = []
    for point in found.points[found.points.period_ns.notna()].itertuples():
        frames = found.frames[found.frames.point_id == point.point_id]
        if (of is None or point.point_id in of) and frames.sent_ns.notna().any():
            count = count_harness_late(frames, int(point.period_ns))
            late += [point.point_id] if count > MAX_HARNESS_LATE * len(frames) else []
    return late


def verdict(said: Evidence) -> str:
    holds = list(said.criteria.values())
    if not holds:
        return "not tested"
    return "reproduced" if all(holds) else "partly" if any(holds) else "not"


def measured_on(found: Trace, of: list[str] | None = None) -> str:
    """Engine, models with their weights, dtype and machine."""
    points = found.points if of is None else found.points[found.points.point_id.isin(of)]
    pairs = points[["model", "weights"]].drop_duplicates().sort_values("model")
    models = ", ".join(
        f"{m} ({'real' if w == 'real' else 'tiny random'} weights)" for m, w in pairs.itertuples(index=False)
    )
    dtypes = ", ".join(sorted(points.engine_dtype.dropna().unique())) or "dtype not recorded"
    engine = {"vllm": "real vLLM engine"}.get(points.engine.iloc[0], points.engine.iloc[0])
    return f"{engine}, {models}, {dtypes}, {', '.join(sorted(points.hardware.unique()))}"


def render(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Claims",
        "",
        "Written by `python -m figures claims` from `data/golden`. Formulas: [METHOD.md](METHOD.md).",
        "",
        RULE,
        "",
        "| id | claim | paper | measured on the real engine | simulated at paper scale | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (
            row["id"],
            row["claim"],
            row["paper"],
            row["measured"] or "-",
            row["simulated"] or "-",
            f"**{row['verdict']}**",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Criteria, and where each figure comes from"]
    for row in rows:
        lines += ["", f"**{row['id']}** {row['claim']} **{row['verdict']}**", ""]
        lines += [f"- {'holds' if holds else 'does not hold'}: {text}" for text, holds in row["criteria"].items()]
        lines += [
            f"- on: {row['on'] or 'no trace'}",
            f"- run: {', '.join(row['runs']) or '-'}",
            f"- command: `{row['command']}`",
        ]
    return "\n".join(lines) + "\n"


def documents(folders: Sequence[Path]) -> dict[str, str]:
    """File name -> text."""
    rows = [judge(claim, folders) for claim in CLAIMS]
    return {"CLAIMS.md": render(rows), "claims.json": json.dumps(rows, indent=1, allow_nan=False) + "\n"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m figures claims", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[Path("data/golden")], help="folders of traces, or run directories"
    )
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the documents differ")
    args = parser.parse_args(argv)
    differences = []
    for name, text in documents(args.data).items():
        path = args.out / name
        if args.check:
            old = path.read_text() if path.exists() else ""
            differences += difflib.unified_diff(
                old.splitlines(), text.splitlines(), str(path), "as the traces say", lineterm=""
            )
        else:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"claims: {path}")
    for line in differences:
        print(line, file=sys.stderr)
    return bool(differences)
