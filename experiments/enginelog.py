"""What engine processes print goes to a file, and what matters of it comes back."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send what this process prints, and what children started meanwhile ever print, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(fd) for fd in (1, 2)]
    with path.open("ab") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, fd)
            os.close(copy)


def last_error(log_file: Path) -> str | None:
    """The last exception an engine process logged: the cause that the front end only points at."""
    found = re.findall(r"^.*?(\w*(?:Error|Exception): .+)$", log_file.read_text(errors="replace"), re.MULTILINE)
    causes = [line for line in found if "Engine core initialization failed" not in line]
    return causes[-1] if causes else None


class EngineFailed(RuntimeError):
    """The engine did not start; the message holds its own reason and where its log is."""


@contextmanager
def starting(log_file: Path) -> Iterator[None]:
    """Around the start of an engine: its output goes to the log, its failure comes back in one sentence."""
    with output_to(log_file):
        try:
            yield
        except (RuntimeError, ValueError) as error:
            cause = last_error(log_file) or str(error)
            raise EngineFailed(f"the engine did not start: {cause}; see {log_file}") from error
