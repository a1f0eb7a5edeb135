"""When the block pool fills: rho(t) = rho0 + N r t, and the exact block arithmetic behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

from metronome.frames import SessionSpec
from metronome.window import Bound, blocks_for


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTokens:
    """What one frame does to the cache: `num_in` tokens at once, then `num_out` sampled one by one.

    The last sampled token is discarded by the engine, so a frame leaves num_in + num_out - 1 tokens behind.
    """

    num_in: int
    num_out: int

    @property
    def growth(self) -> int:
        return self.num_in + self.num_out - 1


def peak_blocks(frame_idx: int, tokens: FrameTokens, block_size: int, bound: Bound | None = None) -> int:
    """The most blocks a session holds while its frame `frame_idx` (from 0) is processed."""
    start = frame_idx * tokens.growth
    end = start + tokens.growth
    if bound is None:
        return blocks_for(end, block_size)
    prefilled = start + tokens.num_in
    steps = [(start, prefilled), *((n, n + 1) for n in range(prefilled, end))]
    return max(bound.num_blocks(computed, total) for computed, total in steps)


def predict_t_sat_ns(
    sessions: Sequence[SessionSpec], tokens: FrameTokens, num_blocks: int, block_size: int, bound: Bound | None = None
) -> int | None:
    """Release time of the first frame that does not fit the pool of `num_blocks`; None when all frames fit.

    Exact while the engine keeps up, so that frames claim their blocks in the order of their release. From that frame on
    the scheduler can start nothing: sessions resume in order of arrival, and the one in front never fits.
    """
    held = dict.fromkeys((s.session_id for s in sessions), 0)
    releases = sorted((s.release_ns(k), s.session_id, k) for s in sessions for k in range(s.num_frames))
    for release_ns, session_id, frame_idx in releases:
        held[session_id] = peak_blocks(frame_idx, tokens, block_size, bound)
        if sum(held.values()) > num_blocks:
            return release_ns
    return None


def first_order_t_sat_ns(
    num_sessions: int, tokens: FrameTokens, period_ns: int, num_blocks: int, block_size: int, rho0: float = 0.0
) -> float:
    """The paper's line: (1 - rho0) / (N r), where r is one session's share of the pool per nanosecond (claim C5)."""
    rate = tokens.growth / (num_blocks * block_size * period_ns)
    return (1 - rho0) / (num_sessions * rate)
