import itertools

import numpy as np
import pytest

from metronome.churn import EngineModel, ModelSession, Pool, expected_blocks, first_collapse_ns, predict_collapse
from metronome.frames import NS_PER_MS, NS_PER_S
from metronome.saturation import FrameTokens, predict_t_sat_ns
from metronome.window import blocks_for
from metronome.workload import Workload

HANG_UP_NS = 2 * NS_PER_S


def workload(**changes):
    return Workload(**({"period_ms": 1000, "deadline_ms": 1000, "duration_s": 60} | changes))


def test_without_churn_it_is_the_exact_prediction():
    """Growth 28 = 25 + 3: the wall is met by a prefill or by a sampled token, and either ends it within a frame."""
    for num_sessions, num_blocks in itertools.product((3, 6, 8), (40, 63, 100, 149)):
        specs = workload().make_sessions(num_sessions)
        pool = Pool(num_blocks=num_blocks, block_size=32, tokens_in=28)
        turns = [itertools.repeat(1)] * num_sessions
        exact = predict_t_sat_ns(specs, FrameTokens(num_in=28, num_out=1), num_blocks, 32)
        found = first_collapse_ns(specs, pool, turns, HANG_UP_NS)
        if exact is None or exact > max(s.release_ns(s.num_frames - 1) for s in specs) - 3 * NS_PER_S:
            assert found is None
        else:
            assert 0 < exact - found <= NS_PER_S / num_sessions + 1  # the last frame that was answered, then silence


def test_mean_occupancy_has_the_closed_form():
    """Ages of exponential lifetimes cut at t, against sessions counted one by one."""
    load = workload(duration_s=120, mean_lifetime_s=30)
    t_ns = np.array([10.5, 30.5, 60.5, 110.5]) * NS_PER_S
    counted = np.zeros(len(t_ns))
    draws = 400
    for seed in range(draws):
        for spec in load.make_sessions(5, seed):
            end_ns = spec.release_ns(spec.num_frames - 1)
            for i, t in enumerate(t_ns):
                if spec.release_ns(0) <= t <= end_ns:
                    frames = (t - spec.release_ns(0)) // spec.period_ns + 1
                    counted[i] += blocks_for(int(frames) * 20, 32) / draws
    # Geometric lifetimes of 30 frames and a first frame at once: half a frame more than the exponential age.
    closed = expected_blocks(t_ns, 5, 20, NS_PER_S, 30 * NS_PER_S, 32)
    assert counted == pytest.approx(closed, rel=0.06)


def test_a_session_that_runs_out_while_it_samples_is_preempted_and_frees_its_blocks():
    engine = EngineModel(Pool(num_blocks=2, block_size=32, tokens_in=30))
    (spec,) = workload(duration_s=3).make_sessions(1)
    session = ModelSession(spec, iter([3, 40, 1]))
    engine.release(session)
    assert engine.run() and (session.cached, session.held, engine.num_free) == (32, 1, 1)
    engine.release(session)
    assert engine.run()
    # 32 + 30 + 39 would be 101 tokens, the pool holds 64: cut short at the 65th, never to fit again.
    assert (session.cached, session.held, engine.num_free) == (65, 0, 2)
    assert session.to_resume and not engine.run()


def test_what_leaves_lets_others_go_on():
    specs = workload(duration_s=30).make_sessions(2)
    pool = Pool(num_blocks=4, block_size=32, tokens_in=32)
    assert first_collapse_ns(specs, pool, [itertools.repeat(1)] * 2, HANG_UP_NS) == NS_PER_S + 500 * NS_PER_MS
    engine = EngineModel(pool)
    first, second = (ModelSession(s, itertools.repeat(1)) for s in specs)
    for session in (first, second, first, second, first):
        engine.release(session)
        engine.run()
    assert engine.num_free == 0 and first.num_pending == 1
    engine.leave(second)
    assert engine.run() and first.num_pending == 0


def test_odds_fall_with_the_pool_and_are_certain_at_its_ends():
    load = workload(mean_lifetime_s=15)
    sampled = np.array([1, 2, 4])
    odds = [
        predict_collapse(load, 4, Pool(num_blocks=n, block_size=32, tokens_in=10), sampled, draws=150).probability
        for n in (5, 30, 45, 1000)
    ]
    assert odds[0] == 1 and odds[-1] == 0
    assert odds == sorted(odds, reverse=True) and 0 < odds[1] < 1


def test_odds_are_those_of_their_seed():
    load, pool = workload(mean_lifetime_s=15), Pool(num_blocks=30, block_size=32, tokens_in=10)
    first, again, other = (predict_collapse(load, 4, pool, np.array([1, 2]), draws=100, seed=s) for s in (1, 1, 2))
    assert (first.t_collapse_ns == again.t_collapse_ns).all() and (first.t_collapse_ns != other.t_collapse_ns).any()
    assert first.std_error == pytest.approx(np.sqrt(first.probability * (1 - first.probability) / 100))
