"""The experiments there are, each in a sentence and with its minutes: what stands above each conf/exp/*.yaml."""

import re
from dataclasses import dataclass
from pathlib import Path

_CONF = Path(__file__).parent / "conf" / "exp"
_MINUTES = re.compile(r"# Minutes on two cores: (\d+)")


@dataclass(frozen=True)
class Entry:
    """minutes: as measured on two cores, engine starts included."""

    name: str
    about: str
    minutes: int


def entries() -> list[Entry]:
    """All experiments, the quickest first."""
    found = [_read(path) for path in sorted(_CONF.glob("*.yaml"))]
    return sorted(found, key=lambda entry: entry.minutes)


def _read(path: Path) -> Entry:
    header = []
    for line in path.read_text().splitlines()[1:]:
        if not line.startswith("#"):
            break
        header.append(line)
    minutes = [match[1] for line in header if (match := _MINUTES.fullmatch(line))]
    if len(minutes) != 1:
        raise ValueError(f"{path}: needs a line '# Minutes on two cores: <whole number>' in its header")
    text = " ".join(line.removeprefix("#").strip() for line in header if not _MINUTES.fullmatch(line))
    return Entry(path.stem, text.split(". ")[0].rstrip(".") + ".", int(minutes[0]))


def listing() -> str:
    """One line an experiment, for --help."""
    return "\n".join(f"  +exp={entry.name:<14} {entry.minutes:>3} min  {entry.about}" for entry in entries())
