"""The shell against engines whose behaviour is known. What is asserted is order and status, never speed."""

import asyncio

import pytest

from metronome.backends.base import EngineDied
from metronome.backends.null import NullBackend
from metronome.forecast import Forecaster
from metronome.frames import NS_PER_MS, FrameStatus, TurnOutput
from metronome.runtime import PointRun
from metronome.session import PeriodicSession
from metronome.workload import Workload

PERIOD_MS = 40


class Memory:
    def __init__(self):
        self.frames, self.samples, self.decisions = [], [], []

    def frame(self, record):
        self.frames.append(record)

    def pool(self, sample):
        self.samples.append(sample)

    def decision(self, decision):
        self.decisions.append(decision)


class Scripted(NullBackend):
    """Does `fault` once a session has had `num_turns` turns: stalls for ever, dies, or breaks."""

    def __init__(self, num_turns, fault):
        super().__init__(tokens_out=4, num_blocks=100, block_size=32)
        self.num_turns, self.fault, self.closed = num_turns, fault, []

    async def converse(self, session_id, turns):
        try:
            heard = 0
            async for _ in turns:
                heard += 1
                if heard > self.num_turns:
                    if self.fault == "max_len":
                        yield TurnOutput(num_tokens=1, num_sampled=1, turn_done=True, hit_max_len=True)
                    if self.fault == "die":
                        raise EngineDied("gone")
                    if self.fault == "break":
                        raise KeyError("a bug")
                    if self.fault == "stall":
                        async for _ in turns:  # input goes on, as vLLM's own reader would take it
                            pass
                        await asyncio.Event().wait()
                yield TurnOutput(num_tokens=4, num_sampled=4, turn_done=True)
        finally:
            self.closed.append(session_id)


def shell(backend, num_sessions=3, num_frames=8, observer=None, phases="spread", forecaster=None):
    load = Workload(period_ms=PERIOD_MS, deadline_ms=PERIOD_MS, duration_s=num_frames * PERIOD_MS / 1000, phases=phases)
    sessions = [PeriodicSession(spec, 25) for spec in load.make_sessions(num_sessions)]
    memory = Memory()
    turns = [[[1] * 25] * num_frames for _ in sessions]
    return PointRun(
        sessions,
        turns,
        backend,
        memory,
        sample_ns=10 * NS_PER_MS,
        drain_ns=2 * PERIOD_MS * NS_PER_MS,
        observer=observer,
        forecaster=forecaster,
    ), memory


async def test_every_frame_is_sent_after_its_release_and_recorded_once():
    run, memory = shell(NullBackend(tokens_out=4, num_blocks=100, block_size=32))
    await run.run()
    assert sorted((f.session_id, f.frame_idx) for f in memory.frames) == [(i, k) for i in range(3) for k in range(8)]
    assert all(f.sent_ns >= f.release_ns and f.done_ns >= f.sent_ns for f in memory.frames)
    assert all(f.tokens_out == 4 for f in memory.frames)


async def test_a_stalled_engine_delays_no_release():
    backend = Scripted(3, "stall")
    run, memory = shell(backend)
    await run.run()
    lost = [f for f in memory.frames if f.status is FrameStatus.LOST]
    assert len(lost) == 3 * 5 and len(memory.frames) == 3 * 8
    assert all(f.sent_ns is not None and f.done_ns is None for f in lost)
    assert len(backend.closed) == 3  # cancelled, so that an engine would free their blocks


async def test_the_pool_is_sampled_also_while_the_engine_is_stalled():
    run, memory = shell(Scripted(3, "stall"))
    await run.run()
    last_done = max(f.done_ns for f in memory.frames if f.done_ns)
    assert sum(s.t_ns > last_done for s in memory.samples) >= 5


async def test_a_dead_engine_is_a_status_not_an_error():
    run, memory = shell(Scripted(3, "die"))
    await run.run()
    statuses = [f.status for f in memory.frames if f.frame_idx >= 3]
    assert set(statuses) == {FrameStatus.ENGINE_DEAD} and len(statuses) == 3 * 5


async def test_a_session_at_max_model_len_ends_alone():
    run, memory = shell(Scripted(3, "max_len"))
    await run.run()
    assert {f.status for f in memory.frames if f.frame_idx >= 3} == {FrameStatus.MAX_LEN}
    assert len(memory.frames) == 3 * 8


async def test_a_fault_of_the_harness_is_raised_not_taken_for_silence():
    run, _ = shell(Scripted(3, "break"))
    with pytest.raises(KeyError, match="a bug"):
        await run.run()


async def test_a_sink_that_fails_stops_the_run():
    run, memory = shell(NullBackend(tokens_out=4, num_blocks=100, block_size=32))

    def full(sample):
        raise OSError("disk full")

    memory.pool = full
    with pytest.raises(OSError, match="disk full"):
        await run.run()


async def test_an_interrupted_run_keeps_its_frames():
    run, memory = shell(NullBackend(tokens_out=4, num_blocks=100, block_size=32), num_frames=100)
    task = asyncio.create_task(run.run())
    await asyncio.sleep(0.8)  # it begins after half a second
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < len(memory.frames) < 3 * 100


async def test_the_observer_sees_sessions_and_samples():
    seen = []
    run, memory = shell(
        NullBackend(tokens_out=4, num_blocks=100, block_size=32),
        observer=lambda sessions, sample: seen.append((sum(s.num_answered for s in sessions), sample.t_ns)),
    )
    await run.run()
    assert seen[-1][0] == 24 and len(seen) == len(memory.samples)


async def test_a_caller_hangs_up_in_time_and_the_next_one_takes_the_line():
    """The stalled session gives up two periods after its last deadline, not at the end of the run."""
    load = Workload(period_ms=PERIOD_MS, deadline_ms=PERIOD_MS, duration_s=20 * PERIOD_MS / 1000, mean_lifetime_s=0.2)
    specs = load.make_sessions(1, seed=3)
    assert len(specs) > 2
    backend, memory = Scripted(2, "stall"), Memory()
    sessions = [PeriodicSession(spec, 25) for spec in specs]
    turns = [[[1] * 25] * spec.num_frames for spec in specs]
    hang_up_ns = 2 * PERIOD_MS * NS_PER_MS
    await PointRun(sessions, turns, backend, memory, sample_ns=10 * NS_PER_MS, drain_ns=hang_up_ns).run()
    assert len(memory.frames) == load.num_frames and len(backend.closed) == len(specs)
    for spec in specs:
        own = [f for f in memory.frames if f.session_id == spec.session_id]
        assert [f.status == FrameStatus.LOST for f in own] == [k >= 2 for k in range(spec.num_frames)]
    assert backend.closed == [f"point-{s.session_id}" for s in specs]  # one after the other


async def test_samples_carry_the_forecast():
    run, memory = shell(
        NullBackend(tokens_out=4, num_blocks=30, block_size=32),
        num_frames=20,
        forecaster=Forecaster(step_ns=PERIOD_MS * NS_PER_MS, horizon_ns=10 * PERIOD_MS * NS_PER_MS),
    )
    await run.run()
    foretold = [s for s in memory.samples if s.tte_ns is not None]
    assert foretold and foretold[0].t_ns > 7 * PERIOD_MS * NS_PER_MS
    assert all(s.tte_low_ns <= s.tte_ns for s in foretold)
    assert any(s.alarm for s in memory.samples) and not memory.samples[0].alarm
