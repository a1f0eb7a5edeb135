"""Thin a run into data/golden: the traces that figures and tests are checked against.

    python scripts/make_golden.py runs/cliff_sweep/20261129T183654Z

Frames and points are kept whole; of the pool every K-th sample, with what the engine observed in between added to it.
With --lean, for runs of many points, times are rounded to 0.1 ms and what the engine observed is left out.
"""

import argparse
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa

from metronome import trace

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/golden"))
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--lean", action="store_true")
    args = parser.parse_args()
    manifest = json.loads((args.run / "manifest.json").read_text())
    if manifest["status"] != "complete":
        raise SystemExit(f"{args.run} is {manifest['status']}: only a complete run makes golden traces")
    experiment = manifest["experiment"]
    data = trace.read(args.run, experiment)
    args.out.mkdir(parents=True, exist_ok=True)
    tables = {"points": data.points, "frames": data.frames, "scores": data.scores}
    tables["pool"] = thin_pool(data.pool, args.every) if len(data.pool) else data.pool
    if args.lean:
        tables |= {name: make_lean(tables[name]) for name in ("frames", "pool") if len(tables[name])}
    for name, table in tables.items():
        if not len(table):
            continue
        path = args.out / f"{experiment}.{name}.parquet"
        trace.write_table(pa.Table.from_pandas(table, schema=trace.SCHEMAS[name], preserve_index=False), path)
        size = path.stat().st_size
        print(f"{path}: {len(table)} rows, {size} bytes")
        if size > _MAX_BYTES:
            raise SystemExit(f"{path} is above {_MAX_BYTES} bytes: raise --every")


if __name__ == "__main__":
    main()
