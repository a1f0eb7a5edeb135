"""A call as a closed loop: a frame is released when the one before is answered, so its latency is the engine's own."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from metronome.backends.base import Backend, EngineDied
from metronome.frames import FrameRecord, FrameStatus, TurnOutput
from metronome.window import Bound


class ClosedCall:
    """One session: says frame after frame, then stays on the line until it hangs up.

    silence_s: a frame that is not answered, not in part either, for this long is lost. origin_ns: of its times, on the
    monotonic clock.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        *,
        session_id: int,
        deadline_ns: int,
        bound: Bound | None,
        silence_s: float,
        origin_ns: int | None = None,
    ) -> None:
        self._session_id, self._deadline_ns, self._bound, self._silence_s = session_id, deadline_ns, bound, silence_s
        self._origin_ns = time.monotonic_ns() if origin_ns is None else origin_ns
        self._inbox: asyncio.Queue[Sequence[int]] = asyncio.Queue()
        self._outputs = backend.converse(name, self._speak())
        self._num_said = self._num_cached = self._num_sampled = 0
        self._first_token_ns: int | None = None

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    async def _speak(self) -> AsyncIterator[Sequence[int]]:
        while True:
            yield await self._inbox.get()

    async def say(self, ids: Sequence[int]) -> FrameRecord:
        """The frame's record, once it is answered or given up."""
        released_ns, self._first_token_ns, self._num_sampled = self.now_ns(), None, 0
        self._inbox.put_nowait(ids)
        status, done_ns = await self._hear(released_ns, len(ids))
        held = self._bound.held_tokens(self._num_cached) if self._bound else self._num_cached
        self._num_said += 1
        return FrameRecord(
            session_id=self._session_id,
            frame_idx=self._num_said - 1,
            release_ns=released_ns,
            sent_ns=released_ns,
            first_token_ns=self._first_token_ns,
            done_ns=done_ns,
            deadline_ns=released_ns + self._deadline_ns,
            tokens_in=len(ids),
            tokens_out=self._num_sampled,
            kv_tokens=None if done_ns is None else held,
            status=status,
        )

    async def _hear(self, released_ns: int, num_in: int) -> tuple[FrameStatus, int | None]:
        """How the frame ended, and when it was answered."""
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    output: TurnOutput = await anext(self._outputs)
            except EngineDied:
                return FrameStatus.ENGINE_DEAD, None
            except (TimeoutError, StopAsyncIteration):
                return FrameStatus.LOST, None
            self._first_token_ns = self._first_token_ns or self.now_ns()
            self._num_sampled += output.num_sampled
            if output.turn_done:
                break
        # The last sampled token is discarded when the next chunk arrives: it never enters the cache.
        self._num_cached += num_in + self._num_sampled - 1
        done_ns = self.now_ns()
        if output.hit_max_len:
            return FrameStatus.MAX_LEN, done_ns
        return FrameStatus.OK if done_ns - released_ns <= self._deadline_ns else FrameStatus.LATE, done_ns

    async def hang_up(self) -> None:
        await self._outputs.aclose()
