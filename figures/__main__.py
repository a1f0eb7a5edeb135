"""Draw figures from traces, or judge the paper's claims by them.

python -m figures [name ...] --data data/golden --out build [--check | --update]
python -m figures claims [--data data/golden] [--out docs] [--check]
"""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from figures import (
    admission,
    claims,
    cliff,
    generality,
    long_call,
    metastability,
    overload,
    recycling,
    saturation,
    session_age,
    silence,
    sinks,
    slope,
    slope_tiny,
    style,
)
from metronome import trace

FIGURES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        cliff,
        silence,
        sinks,
        long_call,
        saturation,
        metastability,
        slope,
        slope_tiny,
        admission,
        overload,
        generality,
        recycling,
        session_age,
    )
}
EXPECTED = Path(__file__).parent / "expected"


def main(argv: list[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["claims"]:
        return claims.main(given[1:])
    args = _parse(given)
    style.use()
    faults = []
    for name in args.names or _drawable(args.data):
        module = FIGURES[name]
        try:
            data = trace.read(args.data, module.EXPERIMENT)
            marks = module.points(data)
            paths = style.save(module.draw(data, marks), args.out, name)
        except ValueError as error:
            faults.append(f"{name}: {error}")
            continue
        print(f"{name}: {', '.join(map(str, paths))}")
        faults += _compare(name, marks, args)
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


def _drawable(data: Path) -> list[str]:
    """All figures; of a run, those of its experiment."""
    manifest = data / "manifest.json"
    if not manifest.exists():
        return list(FIGURES)
    experiment = json.loads(manifest.read_text())["experiment"]
    return [name for name, module in FIGURES.items() if module.EXPERIMENT == experiment]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m figures", description="Draw figures from traces alone.")
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(FIGURES)}; all if none is named")
    parser.add_argument("--data", type=Path, required=True, help="a run directory, or data/golden")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true", help="compare the points with figures/expected")
    parser.add_argument("--update", action="store_true", help="write the points to figures/expected")
    args = parser.parse_args(argv)
    for name in args.names:
        if name not in FIGURES:
            parser.error(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    return args


def _compare(name: str, points: pd.DataFrame, args: argparse.Namespace) -> list[str]:
    expected = EXPECTED / f"{name}.csv"
    if args.update:
        points.to_csv(expected, index=False, float_format="%.9g")
        print(f"{name}: {len(points)} points written to {expected}")
    if not args.check:
        return []
    differences = compare_points(points, pd.read_csv(expected))
    if not differences:
        print(f"{name}: all {len(points)} points as expected")
    return [f"{name}: {text}" for text in differences]


def compare_points(points: pd.DataFrame, expected: pd.DataFrame) -> list[str]:
    """Where two tables of points differ, numbers beyond the nine digits that a CSV keeps."""
    if list(points.columns) != list(expected.columns) or len(points) != len(expected):
        return [f"{len(points)} points {list(points.columns)}, expected {len(expected)} {list(expected.columns)}"]
    found = []
    for column in points.columns:
        got, want = points[column], expected[column]
        if pd.api.types.is_numeric_dtype(want) and not pd.api.types.is_bool_dtype(want):
            same = np.isclose(got.astype(float), want.astype(float), rtol=1e-7, atol=1e-9, equal_nan=True)
        else:
            same = (got.fillna("").astype(str) == want.fillna("").astype(str)).to_numpy()
        found += [f"row {i}, {column}: {got[i]}, expected {want[i]}" for i in np.flatnonzero(~same)[:5]]
    return found


if __name__ == "__main__":
    sys.exit(main())
