"""Execute every notebook on the golden traces, and write the executed copies.

python scripts/run_notebooks.py [--out build/notebooks] [NAME ...]
"""

import argparse
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 01_cliff; all if none is named")
    parser.add_argument("--out", type=Path, default=Path("build/notebooks"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if args.names and path.stem not in args.names:
            continue
        started = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        # Jupyter starts a notebook in its own folder.
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
        nbformat.write(notebook, args.out / path.name)
        print(
            f"{path.stem}: {len(notebook.cells)} cells in {time.monotonic() - started:.0f} s -> {args.out / path.name}"
        )


if __name__ == "__main__":
    main()
