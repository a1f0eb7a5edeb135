"""An engine that costs nothing: it answers every turn at once. What is measured with it is the harness itself."""

from collections.abc import AsyncGenerator, AsyncIterator

from metronome.backends.base import EngineInfo, Turn
from metronome.frames import PoolSample, TurnOutput
from metronome.window import blocks_for


class NullBackend:
    """Answers `tokens_out` tokens per turn without delay, and counts blocks by the same arithmetic as an engine."""

    def __init__(self, *, tokens_out: int, num_blocks: int, block_size: int) -> None:
        self._tokens_out = tokens_out
        self._info = EngineInfo(name="null", num_blocks=num_blocks, block_size=block_size)
        self._cached: dict[str, int] = {}
        self._num_tokens = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        self._cached.clear()

    async def stop(self) -> None:
        self._cached.clear()

    async def converse(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[TurnOutput, None]:
        try:
            async for turn in turns:
                cached = self._cached.get(session_id, 0)  # a session is known from its first turn on
                self._cached[session_id] = cached + len(turn) + self._tokens_out - 1
                self._num_tokens += self._tokens_out
                yield TurnOutput(num_tokens=self._tokens_out, num_sampled=self._tokens_out, turn_done=True)
        finally:
            self._cached.pop(session_id, None)

    def sample(self, t_ns: int) -> PoolSample:
        size = self._info.block_size
        return PoolSample(
            t_ns=t_ns,
            blocks_used=sum(blocks_for(n, size) for n in self._cached.values()),
            blocks_total=self._info.num_blocks,
            running=0,
            waiting=len(self._cached),
            deferred=len(self._cached),
            preemptions=0,
            tokens_out=self._num_tokens,
            stats_age_ns=0,
        )

    async def drained(self, timeout_s: float) -> bool:
        return not self._cached
