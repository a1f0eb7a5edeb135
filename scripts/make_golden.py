"""Thin a run into data/golden: the traces that figures and tests are checked against.

    python scripts/make_golden.py runs/cliff_sweep/20261129T183654Z

Several runs of one experiment are joined: what a later one holds of a model, workload and KV mode is taken.
Frames and points are kept whole; of the pool every K-th sample, with what the engine observed in between added to it.
With --lean, for runs of many points, times are rounded to 0.1 ms and what the engine observed is left out.
With --bare, for hundreds of sessions, frames keep their release, their end and their status alone; frames of callers
who were refused and frames before a point's warm-up is over are left out. A table above 500 kB is written in parts.
"""

import argparse
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa

from metronome import trace
from metronome.tables import SCHEMAS

_LISTS = ("ttft_ms", "inter_token_ms")
_MAX_BYTES = 500_000
_LEAN_NS = 100_000


def thin_pool(pool: pd.DataFrame, every: int) -> pd.DataFrame:
    """Keep the last sample of each run of `every`; lists are joined, so that no observation is lost."""
    kept = []
    for _, samples in pool.groupby("point_id", sort=False):
        samples = samples.reset_index(drop=True)
        for _, group in samples.groupby(samples.index // every):
            joined = {name: [v for values in group[name] for v in values] for name in _LISTS}
            kept.append({**group.iloc[-1].to_dict(), **joined})
    return pd.DataFrame(kept)


def make_lean(table: pd.DataFrame) -> pd.DataFrame:
    """Times that happened rounded, and no lists."""
    lean = table.copy()
    for name in ("sent_ns", "first_token_ns", "done_ns", "t_ns", "stats_age_ns", "tte_ns", "tte_low_ns", "tte_high_ns"):
        if name in lean:
            lean[name] = (lean[name] // _LEAN_NS) * _LEAN_NS
    for name in set(_LISTS) & set(lean):
        lean[name] = [[] for _ in range(len(lean))]
    return lean


def make_bare(frames: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """What latency and goodput are made of."""
    warm_up_ns = frames.point_id.map(points.set_index("point_id").warm_up_ns).fillna(0)
    kept = frames[(frames.status != "refused") & (frames.release_ns >= warm_up_ns)].copy()
    for name in ("sent_ns", "first_token_ns", "kv_tokens"):
        kept[name] = pd.array([pd.NA] * len(kept), dtype="Int64")
    return kept


def write(table: pa.Table, out: Path, name: str) -> None:
    """In as few parts as the limit allows."""
    for num_parts in range(1, 10):
        for old in out.glob(f"{name}*.parquet"):
            old.unlink()
        size = -(-len(table) // num_parts)
        parts = [table.slice(i * size, size) for i in range(num_parts)]
        names = [f"{name}.parquet"] if num_parts == 1 else [f"{name}.{i}.parquet" for i in range(num_parts)]
        for part, part_name in zip(parts, names, strict=True):
            trace.write_table(part, out / part_name)
        sizes = [(out / part_name).stat().st_size for part_name in names]
        if max(sizes) <= _MAX_BYTES:
            print(f"{out / name}: {len(table)} rows, {sizes} bytes")
            return
    raise SystemExit(f"{out / name} is far above {_MAX_BYTES} bytes: raise --every")


def read_runs(runs: list[Path]) -> tuple[str, trace.Trace]:
    """What they are runs of, and their points."""
    manifests = [json.loads((run / "manifest.json").read_text()) for run in runs]
    for run, manifest in zip(runs, manifests, strict=True):
        if manifest["status"] != "complete":
            raise SystemExit(f"{run} is {manifest['status']}: only a complete run makes golden traces")
    experiment = manifests[0]["experiment"]
    latest: dict[tuple[str, ...], list[trace.Trace]] = {}
    for data in (trace.read(run, experiment) for run in runs):
        for key, points in data.points.groupby(["model", "workload", "kv"], sort=False, dropna=False):
            latest[key] = [data.of(point_id) for point_id in points.point_id]
    return experiment, trace.join([one for traces in latest.values() for one in traces])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("data/golden"))
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--bare", action="store_true")
    args = parser.parse_args()
    experiment, data = read_runs(args.run)
    args.out.mkdir(parents=True, exist_ok=True)
    tables = {"points": data.points, "frames": data.frames, "scores": data.scores, "decisions": data.decisions}
    tables["pool"] = thin_pool(data.pool, args.every) if len(data.pool) else data.pool
    if args.bare:
        tables["frames"] = make_bare(tables["frames"], data.points)
    if args.lean:
        tables |= {name: make_lean(tables[name]) for name in ("frames", "pool", "decisions") if len(tables[name])}
    for name, table in tables.items():
        if not len(table):
            continue
        arrow = pa.Table.from_pandas(table, schema=SCHEMAS[name], preserve_index=False)
        write(arrow, args.out, f"{experiment}.{name}")


if __name__ == "__main__":
    main()
