import fcntl
import os
import signal
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
_WORST = pytest.StashKey[dict[str, float]]()


def pytest_configure(config):
    config.stash[_LINES], config.stash[_WORST] = [], {}
    # A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def starts_engine(item):
    return item.get_closest_marker("engine") is not None


def pytest_collection_modifyitems(items):
    """Engines first, since they take longest; those that keep deadlines last among them."""
    for item in items:
        if starts_engine(item) and item.path.parent.name != "engine":
            raise pytest.UsageError(f"{item.nodeid} starts an engine: move it into tests/engine")
    items.sort(key=lambda item: (not starts_engine(item), bool(item.get_closest_marker("alone"))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where two processes share the tests (make test), one starts all engines, never two at once; the other goes on
    module by module."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = Path(nodeid.partition("::")[0])
            return "engine" if path.parent.name == "engine" else path.name

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test that keeps deadlines waits until no other runs, and none begins beside it."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture
def say_at_end(request):
    """Prints figures that a passing test found, which pytest would keep to itself, before the last line."""
    return request.config.stash[_LINES].append


def pytest_sessionfinish(session):
    config = session.config
    if "paged" in sys.modules:
        config.stash[_WORST] |= sys.modules["paged"].WORST_RATIO
    if hasattr(config, "workeroutput"):  # of a process that shares the tests: what they found, to the one that prints
        config.workeroutput["found"] = (config.stash[_LINES], config.stash[_WORST])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    lines, worst = getattr(node, "workeroutput", {}).get("found", ([], {}))
    node.config.stash[_LINES] += lines
    node.config.stash[_WORST] |= worst  # a kernel's tests share a module, so they share a worker


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[_LINES]:
        terminalreporter.write_line(line)
    worst = config.stash[_WORST]
    if worst:
        name = max(worst, key=worst.get)
        terminalreporter.write_line(
            f"kernels: worst error {worst[name]:.2f} times that of plain torch in the same dtype ({name}); allowed 2"
        )
