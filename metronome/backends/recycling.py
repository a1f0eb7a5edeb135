"""The bound that an application can build by itself: end a session's request, start it again with what is kept."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import count

import numpy as np

from metronome.backends.base import Backend, EngineInfo, Turn
from metronome.backends.listening import listening
from metronome.frames import PoolSample, TurnOutput


class RecyclingBackend:
    """Recycles sessions on a stock engine (claim C12).

    A session's request ends with the turn after which another would pass `limit` tokens. The next turn opens a new one
    whose prompt is the first `sinks` and the last `window` tokens so far, which the engine computes once more: what its
    `num_in` says. Sessions of token ids only.
    """

    def __init__(self, inner: Backend, *, window: int, sinks: int, limit: int, tokens_out: int) -> None:
        self._inner = inner
        self._window, self._sinks, self._limit, self._tokens_out = window, sinks, limit, tokens_out

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def converse(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[TurnOutput, None]:
        life = _Life()
        async with listening(turns) as heard:
            for part in count():
                first = await anext(heard, None)
                if first is None:
                    return
                stretch = self._stretch(first, heard, life)
                async with aclosing(self._inner.converse(f"{session_id}.{part}", stretch)) as outputs:
                    async for output in outputs:
                        yield life.heard(output)
                        if output.hit_max_len:
                            return

    async def _stretch(self, first: Turn, turns: AsyncIterator[Turn], life: "_Life") -> AsyncGenerator[Turn, None]:
        """The turns of one request; it ends at once, not with the turn that no longer fits."""
        carried = life.restart(self._sinks, self._window)
        planned = len(carried)
        turn: Turn | None = first
        while turn is not None:
            assert not isinstance(turn, np.ndarray), "audio cannot be recycled: its tokens are not known"
            life.sent.append([*carried, *turn])
            carried = []
            yield life.sent[-1]
            planned += len(turn) + self._tokens_out - 1
            if planned + len(turn) + self._tokens_out > self._limit:
                return
            turn = await anext(turns, None)

    def sample(self, t_ns: int) -> PoolSample:
        return self._inner.sample(t_ns)

    async def drained(self, timeout_s: float) -> bool:
        return await self._inner.drained(timeout_s)


class _Life:
    """What a session has in its present request."""

    def __init__(self) -> None:
        self.cached: list[int] = []
        self.sent: deque[list[int]] = deque()  # not yet answered
        self._said: list[int] = []

    def restart(self, sinks: int, window: int) -> list[int]:
        """What is kept of the request so far."""
        assert not self.sent, "a request ends once all its turns are answered"
        kept, self.cached = self.cached, []
        return kept if len(kept) <= sinks + window else kept[:sinks] + kept[len(kept) - window :]

    def heard(self, output: TurnOutput) -> TurnOutput:
        self._said += output.token_ids
        if not output.turn_done:
            return output
        self.cached += self.sent.popleft() + self._said[:-1]  # a turn's last token never enters the cache
        self._said = []
        return replace(output, num_kept=len(self.cached))
