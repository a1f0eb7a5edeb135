"""The backend around Moshi's loop. Tiny random weights: none of it is speech."""

import asyncio
import os
import signal
from contextlib import aclosing

import numpy as np
import pytest
import pytest_asyncio
from moshi_tiny import BLOCK_SIZE, BLOCKS_PER_SLOT, SIZE, WINDOW, audio

from metronome.backends.base import EngineDied
from metronome.backends.moshi_duplex import MoshiDuplexBackend
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.runtime import PointRun
from metronome.session import PeriodicSession
from metronome.workload import Workload

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest_asyncio.fixture(scope="module")
async def backend(checkpoint):
    backend = MoshiDuplexBackend(checkpoint, num_slots=2, block_size=BLOCK_SIZE)
    await backend.start()
    yield backend
    await backend.stop()


async def speak(turns):
    for turn in turns:
        yield turn


async def held(turns, hang_up):
    for turn in turns:
        yield turn
    await hang_up.wait()


async def said(backend, name, samples):
    async with aclosing(backend.speak(name, speak(samples.reshape(-1, SIZE)))) as replies:
        return [(s.text_token, s.codes, s.speech.tobytes()) async for s in replies]


async def test_it_says_what_it_is(backend):
    info = backend.info
    assert (info.name, info.num_blocks, info.block_size) == ("transformers", 2 * BLOCKS_PER_SLOT, BLOCK_SIZE)
    assert info.max_model_len is None and info.dtype == "float32" and set(info.versions) == {"torch", "transformers"}
    assert info.block_bytes == BLOCK_SIZE * 2 * 2 * 64 * 4


async def test_sessions_do_not_hear_each_other(backend):
    alone = await said(backend, "a", audio(8))
    together, other = await asyncio.gather(said(backend, "a", audio(8)), said(backend, "b", audio(8, seed=1)))
    assert together == alone and other != alone
    assert await said(backend, "a", audio(8, seed=1)) != alone
    assert await said(backend, "b", audio(8)) != alone  # a generator of its own
    assert await backend.drained(10)


async def test_a_turn_of_several_frames_is_answered_frame_by_frame(backend):
    before = backend.sample(0).tokens_out
    replies = [out async for out in backend.converse("a", speak([audio(3), audio(1)]))]
    assert [r.turn_done for r in replies] == [False, False, True, True]
    assert [r.num_tokens for r in replies] == [1] * 4
    assert [r.num_kept for r in replies] == [2, 3, 4, 5]
    assert backend.sample(0).tokens_out == before + 4


async def test_blocks_grow_to_the_claim_and_stay(backend):
    used = []
    async for _ in backend.converse("a", speak(audio(2 * WINDOW).reshape(-1, SIZE))):
        used.append(backend.sample(0).blocks_used)
    assert used == [-(-min(k + 2, WINDOW - 1) // BLOCK_SIZE) for k in range(2 * WINDOW)]
    assert used[0] == 1 and used[-1] == 2
    assert await backend.drained(10) and backend.sample(0).blocks_used == 0


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (np.zeros(1000, np.float32), r"moshi \(tiny_moshi\).* 1000 samples .*multiple of 80.* 1920 samples"),
        (np.zeros(SIZE + 1, np.float32), r"1921 samples .* 3840 samples"),
        (np.zeros(0, np.float32), "of 0 samples"),
        (np.zeros((1, SIZE), np.float32), r"float32 of shape \(1, 1920\)"),
        (np.zeros(SIZE), "not float64"),
        (np.full(SIZE, np.nan, np.float32), "finite"),
        ([1, 2, 3], "not 3 token ids"),
    ],
)
async def test_a_turn_that_is_no_audio_is_refused_and_the_others_go_on(backend, turn, message):
    async def wrong():
        with pytest.raises(ValueError, match=message):
            async for _ in backend.converse("wrong", speak([audio(1), turn])):
                pass

    good, _ = await asyncio.gather(said(backend, "good", audio(4)), wrong())
    assert len(good) == 4
    assert await backend.drained(10)


async def test_a_session_too_many_waits_until_a_slot_is_free(backend):
    hang_up = asyncio.Event()
    first = backend.converse("first", held([audio(1)], hang_up))
    second = backend.converse("second", held([audio(1)], hang_up))
    await anext(first), await anext(second)
    third = asyncio.create_task(said(backend, "third", audio(2)))
    done, _ = await asyncio.wait([third], timeout=0.3)
    sample = backend.sample(0)
    assert not done and (sample.running, sample.waiting, sample.deferred) == (0, 3, 2)
    await first.aclose()
    assert len(await third) == 2
    await second.aclose()
    assert await backend.drained(10)


async def test_cancelled_sessions_free_their_slots(backend):
    for _ in range(3):
        tasks = [asyncio.create_task(said(backend, name, audio(50))) for name in "abcd"]
        await asyncio.sleep(0.1)
        assert backend.sample(0).running == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await backend.drained(10) and backend.sample(0).waiting == 0
    assert len(await said(backend, "a", audio(1))) == 1


async def test_drained_says_when_a_session_stays(backend):
    session = backend.converse("a", held([audio(1)], asyncio.Event()))
    await anext(session)
    assert not await backend.drained(0.05)
    await session.aclose()
    assert await backend.drained(10)


async def test_turns_are_taken_when_they_are_spoken_not_when_they_are_answered(backend):
    taken = []

    async def turns():
        for k in range(10):
            taken.append(k)
            yield audio(1)

    async with aclosing(backend.converse("a", turns())) as outputs:
        await anext(outputs)
        assert len(taken) == 10


async def test_what_the_turns_raise_reaches_the_caller(backend):
    async def turns():
        yield audio(1)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        async for _ in backend.converse("a", turns()):
            pass
    assert await backend.drained(10)


class Memory:
    def __init__(self):
        self.frames, self.samples = [], []

    def frame(self, record):
        self.frames.append(record)

    def pool(self, sample):
        self.samples.append(sample)


async def test_the_runtime_drives_it(backend):
    load = Workload(period_ms=80, deadline_ms=80, duration_s=0.8)
    sessions = [PeriodicSession(spec, 1) for spec in load.make_sessions(2)]
    turns = [list(audio(10, seed=i).reshape(-1, SIZE)) for i in range(2)]
    memory = Memory()
    run = PointRun(sessions, turns, backend, memory, sample_ns=20 * NS_PER_MS, drain_ns=60 * NS_PER_S)
    await run.run()
    assert len(memory.frames) == 20 and all(f.tokens_out == 1 and f.done_ns for f in memory.frames)
    assert max(s.blocks_used for s in memory.samples) == 4
    assert await backend.drained(10)


async def test_a_dead_process_is_said_so_and_can_be_started_again(backend):
    alone = await said(backend, "a", audio(2))
    session = backend.converse("a", held([audio(1)], asyncio.Event()))
    await anext(session)
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        await said(backend, "b", audio(1))
    await session.aclose()
    assert await backend.drained(1)
    await backend.stop()
    await backend.start()
    assert await said(backend, "a", audio(2)) == alone


async def test_a_checkpoint_that_is_none_is_refused(tmp_path):
    backend = MoshiDuplexBackend(str(tmp_path), num_slots=1)
    with pytest.raises(FileNotFoundError, match="no Moshi there"):
        await backend.start()
