import asyncio

import numpy as np
import pytest

from metronome.backends.base import EngineInfo
from metronome.backends.recycling import RecyclingBackend
from metronome.frames import TurnOutput

WINDOW, SINKS, LIMIT, OUT = 8, 2, 24, 3


class Inner:
    """Answers every turn with the next numbers from 1000 on, in two pieces, and keeps what each request was given."""

    def __init__(self):
        self.info = EngineInfo(name="fake", num_blocks=10, block_size=4)
        self.requests = {}
        self.open = set()
        self.next_id = 1000

    async def converse(self, session_id, turns):
        given = self.requests[session_id] = []
        self.open.add(session_id)
        try:
            async for turn in turns:
                given.append(list(turn))
                ids = tuple(range(self.next_id, self.next_id + OUT))
                self.next_id += OUT
                yield TurnOutput(num_tokens=1, num_sampled=1, turn_done=False, token_ids=ids[:1])
                yield TurnOutput(
                    num_tokens=OUT - 1, num_sampled=OUT - 1, turn_done=True, token_ids=ids[1:], num_in=len(turn)
                )
        finally:
            self.open.discard(session_id)


async def hold(num_turns, size=4):
    """All turns of one session, and what came of them: (inner backend, outputs that ended a turn)."""
    inner = Inner()
    backend = RecyclingBackend(inner, window=WINDOW, sinks=SINKS, limit=LIMIT, tokens_out=OUT)

    async def turns():
        for k in range(num_turns):
            yield list(range(k * size, (k + 1) * size))

    ended = [output async for output in backend.converse("s", turns()) if output.turn_done]
    return inner, ended


async def test_no_request_passes_its_limit():
    inner, ended = await hold(12)
    assert len(ended) == 12
    assert max(output.num_kept for output in ended) <= LIMIT
    assert len(inner.requests) > 2 and not inner.open


async def test_a_new_request_begins_with_the_sinks_and_the_most_recent_tokens():
    inner, _ = await hold(6)
    first, second = inner.requests["s.0"], inner.requests["s.1"]
    cached = []
    for k, turn in enumerate(first):
        cached += turn + list(range(1000 + k * OUT, 1000 + k * OUT + OUT - 1))  # the last one never enters the cache
    new = list(range(4 * len(first), 4 * len(first) + 4))
    assert second[0] == cached[:SINKS] + cached[-WINDOW:] + new
    assert second[0][:SINKS] == [0, 1]


async def test_sinks_stay_the_first_tokens_of_the_session():
    inner, _ = await hold(30)
    starts = [request[0][:SINKS] for request in inner.requests.values()]
    assert starts == [[0, 1]] * len(starts) and len(starts) > 5


async def test_what_is_computed_again_is_told():
    _, ended = await hold(6)
    extra = [output.num_in - 4 for output in ended]
    assert extra.count(0) < len(extra) and set(extra) == {0, WINDOW + SINKS}


async def test_a_request_ends_with_the_turn_after_which_no_other_fits():
    inner, _ = await hold(12)
    per_turn = 4 + OUT - 1
    for request in list(inner.requests.values())[:-1]:
        held = sum(len(turn) + OUT - 1 for turn in request)
        assert held + per_turn + 1 > LIMIT and held <= LIMIT


async def test_a_session_without_turns_opens_no_request():
    inner, ended = await hold(0)
    assert inner.requests == {} and ended == []


async def test_turns_are_taken_when_they_are_spoken_though_a_recycle_waits_for_answers():
    taken, go_on = [], asyncio.Event()

    class Slow(Inner):
        async def converse(self, session_id, turns):
            async for output in super().converse(session_id, turns):
                await go_on.wait()
                yield output

    backend = RecyclingBackend(Slow(), window=WINDOW, sinks=SINKS, limit=LIMIT, tokens_out=OUT)

    async def turns():
        for k in range(9):
            taken.append(k)
            yield [k] * 4

    async def listen():
        return [output async for output in backend.converse("s", turns()) if output.turn_done]

    session = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    assert taken == list(range(9))
    go_on.set()
    assert len(await session) == 9


async def test_audio_is_not_recycled():
    backend = RecyclingBackend(Inner(), window=WINDOW, sinks=SINKS, limit=LIMIT, tokens_out=OUT)

    async def turns():
        yield np.zeros(10, np.float32)

    with pytest.raises(AssertionError, match="audio cannot be recycled"):
        async for _ in backend.converse("s", turns()):
            pass
