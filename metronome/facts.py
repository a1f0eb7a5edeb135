"""What a trace says of a point, as the objects that it was run with. `point` is a row of the points table."""

from typing import Any

import pandas as pd

from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.saturation import FrameTokens
from metronome.window import Bound
from metronome.workload import Workload


def bound_of(point: Any) -> Bound | None:
    """Its KV bound; None for the unbounded engine."""
    if pd.isna(point.window):
        return None
    return Bound(
        window=int(point.window), sinks=int(point.sinks), positions=point.positions, block_size=int(point.block_size)
    )


def workload_of(point: Any) -> Workload:
    """Who spoke when, for make_sessions(point.sessions, seed_of(point))."""
    return Workload(
        period_ms=int(point.period_ns) // NS_PER_MS,
        deadline_ms=int(point.deadline_ns) // NS_PER_MS,
        duration_s=point.duration_ns / NS_PER_S,
        phases=point.phases,
        mean_lifetime_s=None if pd.isna(point.mean_lifetime_ns) else point.mean_lifetime_ns / NS_PER_S,
        burst_frames=None if pd.isna(point.burst_frames) else int(point.burst_frames),
        silence_periods=0 if pd.isna(point.silence_periods) else int(point.silence_periods),
    )


def seed_of(point: Any) -> tuple[int, ...]:
    """What drew the lifetimes of its sessions."""
    return () if point.workload_seed is None else tuple(int(part) for part in point.workload_seed)


def tokens_of(point: Any) -> FrameTokens:
    """What a frame does to the cache, at most where turns vary."""
    return FrameTokens(num_in=int(point.tokens_in), num_out=int(point.tokens_out))
