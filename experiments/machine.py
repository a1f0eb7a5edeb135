"""One measurement at a time on a machine: two engines that share cores measure each other."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.profiles import has_gpu


def lock_path() -> Path:
    """One for the CPU, and one for each choice of GPUs, which may measure side by side.

    Without a GPU the choice says nothing: a launcher sets it for its jobs, a shell does not.
    """
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(",", "+") if has_gpu() else "cpu"
    return Path(tempfile.gettempdir()) / f"metronome-{os.getuid()}-{devices}.lock"


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other run measures here. The lock ends with the process, however that ends."""
    with lock_path().open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("waiting for another run on this machine to end ...\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
