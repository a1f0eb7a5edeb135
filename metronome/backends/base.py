"""What the runtime asks of an engine."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metronome.frames import PoolSample, TurnOutput

Turn = Sequence[int] | NDArray[np.float32]  # one frame's input: token ids, or mono samples at the model's audio rate


class EngineDied(RuntimeError):
    """The engine process is gone; every session on it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the engine really runs with. num_blocks: blocks that sessions can use; vLLM keeps one null block."""

    name: str
    num_blocks: int
    block_size: int
    max_model_len: int | None = None
    dtype: str | None = None  # of weights and cache
    block_bytes: int | None = None  # over all layers
    versions: dict[str, str] = field(default_factory=dict)
    stream_fixes: bool | None = None  # whether the plugin keeps the cost of a frame of audio from growing
    bound_live_in: list[dict[str, Any]] = field(
        default_factory=list
    )  # the plugin's own reports, one per process and role


class Backend(Protocol):
    """An engine that holds sessions: each takes a stream of turns and gives back a stream of tokens."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Start the engine and answer one throw-away session, so that nothing measured pays for a first time."""

    async def stop(self) -> None: ...

    def converse(self, session_id: str, turns: AsyncIterator[Turn]) -> AsyncGenerator[TurnOutput, None]:
        """One session: each item of `turns` is a frame's input. Closing or cancelling it frees its cache.

        Raises EngineDied.
        """

    def sample(self, t_ns: int) -> PoolSample:
        """The pool as the engine last reported it; observations since the previous call are handed over once."""

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no session holds a block; False when that did not happen in time."""
