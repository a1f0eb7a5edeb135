import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests share synthetic.py, reference.py and paged.py

# Kernels run in Triton's interpreter here, which Triton decides as it is imported. The variable must not reach the
# engines that tests start, so it is gone again at once.
os.environ["TRITON_INTERPRET"] = "1"
import pytest  # noqa: E402
import triton  # noqa: E402

triton.knobs.runtime.interpret = True
del os.environ["TRITON_INTERPRET"]


_LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def say_at_end(request):
    """Prints figures that a passing test found, which pytest would keep to itself, before the last line."""
    return request.config.stash.setdefault(_LINES, []).append


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(_LINES, []):
        terminalreporter.write_line(line)
    if "paged" not in sys.modules:
        return
    worst = sys.modules["paged"].WORST_RATIO
    if worst:
        name = max(worst, key=worst.get)
        terminalreporter.write_line(
            f"kernels: worst error {worst[name]:.2f} times that of plain torch in the same dtype ({name}); allowed 2"
        )
