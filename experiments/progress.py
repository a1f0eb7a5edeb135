"""What a person sees while a sweep runs: one live line on a terminal, plain lines elsewhere; a table at the end."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from metronome.frames import NS_PER_S, PoolSample
from metronome.session import PeriodicSession
from metronome.workload import Workload

_PLAIN_EVERY_S = 10.0
_WIDE = 200  # a log has no width to respect: better one long line than a folded table

Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]  # header: cell of a result


class Progress:
    """Use as a context; `observe` is called at every sample of the pool."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        if not self._console.is_terminal:
            self._console = Console(width=_WIDE)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._head = ""
        self._duration_s = 0.0
        self._started_s = time.monotonic()
        self._printed_s = -math.inf

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """A step that is no point."""
        self._show(f"{text} ...", always=True)

    def start_point(self, index: int, num_points: int | None, title: str, workload: Workload) -> None:
        """num_points: None where what comes depends on what is seen."""
        of = "" if num_points is None else f"/{num_points}"
        self._head = f"point {index + 1}{of} {title}"
        self._duration_s = workload.duration_s
        self._printed_s = -math.inf

    def observe(self, sessions: Sequence[PeriodicSession], sample: PoolSample) -> None:
        """Progress is frames answered and tokens spoken; a clock that moves is not."""
        if not self._is_due():  # summed up ten times a second, hundreds of sessions would cost the engine its core
            return
        t_s = sample.t_ns / NS_PER_S
        answered = sum(s.num_answered for s in sessions)
        on_time = sum(s.num_on_time for s in sessions)
        spoken = sum(s.num_tokens for s in sessions)
        rate = spoken / t_s if t_s > 0 else 0.0
        self._show(
            f"{self._head}: {min(t_s, self._duration_s):.0f}/{self._duration_s:.0f} s, {on_time}/{answered} frames on "
            f"time, {rate:.0f} tokens/s, rho {sample.blocks_used / sample.blocks_total:.2f}, {_forecast(sample)}"
            f"running {sample.running}, waiting {sample.waiting}"
        )

    def end_point(self, result: Mapping[str, Any]) -> None:
        at = "" if result["t_collapse_s"] is None else f" ({result['cause']}) at {result['t_collapse_s']:.1f} s"
        p95 = number(result["engine_latency_ms"]["p95"], 0)
        self._console.print(Text(f"{self._head}: {result['outcome']}{at}, engine p95 {p95} ms"))

    def _show(self, text: str, always: bool = False) -> None:
        if self._console.is_terminal:
            self._live.update(Text(f"[{time.monotonic() - self._started_s:.0f} s] {text}"), refresh=True)
        elif always or self._is_due():
            self._printed_s = time.monotonic()
            self._console.print(Text(text))

    def _is_due(self) -> bool:
        return self._console.is_terminal or time.monotonic() - self._printed_s > _PLAIN_EVERY_S

    def table(self, results: Sequence[Mapping[str, Any]], columns: Columns, title: str, caption: str) -> None:
        """One row per result."""
        table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
        for header in columns:
            table.add_column(header)
        for result in results:
            table.add_row(*(cell(result) for cell in columns.values()))
        self._console.print(table)


def _forecast(sample: PoolSample) -> str:
    if sample.tte_ns is None:
        return ""
    alarm = " ALARM" if sample.alarm else ""
    return f"full in {sample.tte_ns / NS_PER_S:.0f} s{alarm}, "


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def spread(values: Sequence[float | None] | None, digits: int) -> str:
    """A value with its interval, where it has one."""
    if values is None:
        return "-"
    if values[1] is None:
        return number(values[0], digits)
    return f"{values[0]:.{digits}f} [{values[1]:.{digits}f}, {values[2]:.{digits}f}]"
