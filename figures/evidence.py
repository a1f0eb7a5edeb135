"""What a claim is held to: criteria in words, each with whether it holds on a trace, and what was measured."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from metronome.trace import Trace


@dataclass(frozen=True)
class Evidence:
    """of: the points that were looked at; None: all of the trace."""

    measured: str
    criteria: dict[str, bool]
    of: list[str] | None = None


Judge = Callable[[Trace], Evidence]


def is_unbounded(trace: Trace) -> pd.Series:
    """By row of its points."""
    return trace.points.kv == "unbounded"
