"""Gated points on an engine that costs nothing: who is let in, waits, or is shown out, and what frames say of it."""

from collections import Counter

from test_runtime import PERIOD_MS, Memory, Scripted

from metronome.admission import AimdLimit, FixedLimit, Unlimited
from metronome.backends.null import NullBackend
from metronome.control import Controller
from metronome.frames import NS_PER_MS, Action, FrameStatus, SessionSpec
from metronome.gate import Gate
from metronome.runtime import PointRun
from metronome.session import PeriodicSession

PERIOD_NS = PERIOD_MS * NS_PER_MS


def caller(session_id, start, num_frames):
    return SessionSpec(
        session_id=session_id,
        start_ns=start * PERIOD_NS,
        phase_ns=0,
        period_ns=PERIOD_NS,
        deadline_ns=PERIOD_NS,
        num_frames=num_frames,
    )


async def serve(specs, policy, backend=None, **options):
    memory = Memory()
    backend = backend or NullBackend(tokens_out=4, num_blocks=100, block_size=32)
    await PointRun(
        [PeriodicSession(spec, 25) for spec in specs],
        [[[1] * 25] * spec.num_frames for spec in specs],
        backend,
        memory,
        sample_ns=10 * NS_PER_MS,
        drain_ns=2 * PERIOD_NS,
        controller=Controller(Gate(policy, window_ns=2 * PERIOD_NS, **options)),
    ).run()
    return memory


def of(memory, session_id):
    return [f for f in memory.frames if f.session_id == session_id]


def actions(memory, session_id):
    return [str(d.action) for d in memory.decisions if d.session_id == session_id]


async def test_who_does_not_fit_is_refused_and_its_frame_is_not_sent():
    memory = await serve([caller(0, 0, 8), caller(1, 1, 4), caller(2, 10, 4)], FixedLimit(1))
    assert Counter(f.status for f in of(memory, 0)) == {FrameStatus.OK: 8}
    (refused,) = of(memory, 1)
    assert (refused.status, refused.sent_ns) == (FrameStatus.REFUSED, None)
    assert Counter(f.status for f in of(memory, 2)) == {FrameStatus.OK: 4}
    assert actions(memory, 0) == ["admit", "leave"] and actions(memory, 1) == ["refuse"]


async def test_who_waits_begins_when_a_place_is_free_and_misses_nothing():
    memory = await serve([caller(0, 0, 6), caller(1, 1, 4)], FixedLimit(1), max_wait_ns=20 * PERIOD_NS)
    assert actions(memory, 1) == ["wait", "admit", "leave"]
    frames = of(memory, 1)
    assert [f.status for f in frames] == [FrameStatus.OK] * 4
    left = next(d.t_ns for d in memory.decisions if d.session_id == 0 and d.action is Action.LEAVE)
    assert left <= frames[0].release_ns < left + PERIOD_NS
    gaps = [b.release_ns - a.release_ns for a, b in zip(frames, frames[1:], strict=False)]
    assert gaps == [PERIOD_NS] * 3


async def test_waiting_ends_in_a_refusal():
    memory = await serve([caller(0, 0, 12), caller(1, 1, 4)], FixedLimit(1), max_wait_ns=2 * PERIOD_NS)
    assert actions(memory, 1) == ["wait", "refuse"]
    assert [f.status for f in of(memory, 1)] == [FrameStatus.REFUSED]


async def test_the_newest_are_shed_from_an_engine_that_stalls():
    """Frames that were due are dropped; the engine frees the sessions."""
    backend = Scripted(2, "stall")
    specs = [caller(i, 0, 20) for i in range(4)]
    memory = await serve(specs, AimdLimit(start=4, decrease=0.5), backend, shed=True)
    admitted, shed = ([d.session_id for d in memory.decisions if d.action is a] for a in (Action.ADMIT, Action.SHED))
    assert len(admitted) == 4 and shed[:2] == admitted[:1:-1]
    for session_id in shed[:2]:
        statuses = [f.status for f in of(memory, session_id)]
        assert statuses[:2] == [FrameStatus.OK] * 2 and set(statuses[2:]) == {FrameStatus.DROPPED}
        assert len(statuses) < 20
    assert len(backend.closed) == 4


async def test_without_a_limit_everybody_is_in_and_counted():
    memory = await serve([caller(i, i, 5) for i in range(4)], Unlimited())
    assert Counter(f.status for f in memory.frames) == {FrameStatus.OK: 20}
    assert max(d.num_active for d in memory.decisions) == 4
    assert memory.decisions[-1].num_active == 0
    assert {d.limit for d in memory.decisions} == {float("inf")}
