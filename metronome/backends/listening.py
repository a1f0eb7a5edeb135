"""Turns are taken when they are spoken, however far answers lag: the load generator waits for no backend."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from metronome.backends.base import Turn


@asynccontextmanager
async def listening(turns: AsyncIterator[Turn]) -> AsyncGenerator[AsyncGenerator[Turn, None], None]:
    """The same turns, to be had at leisure; what `turns` raises is raised at their end."""
    heard: asyncio.Queue[Turn | None] = asyncio.Queue()
    listener = asyncio.create_task(_listen(turns, heard))

    async def again() -> AsyncGenerator[Turn, None]:
        while (turn := await heard.get()) is not None:
            yield turn
        await listener

    try:
        yield again()
    finally:
        listener.cancel()
        await asyncio.wait([listener])


async def _listen(turns: AsyncIterator[Turn], heard: "asyncio.Queue[Turn | None]") -> None:
    """None ends them."""
    try:
        async for turn in turns:
            heard.put_nowait(turn)
    finally:
        heard.put_nowait(None)
