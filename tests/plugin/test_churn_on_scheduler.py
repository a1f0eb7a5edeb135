"""The law's model of the engine against vLLM's own scheduler: the same races, frame by frame."""

import numpy as np
import pytest
import scheduler as vllm_scheduler

from metronome.churn import Pool, first_collapse_ns
from metronome.frames import NS_PER_MS
from metronome.stats import COLLAPSE_PERIODS
from metronome.workload import HANG_UP_PERIODS, Workload

MAX_TOKENS, TOKENS_IN = 8, 10
PERIOD_NS = 400 * NS_PER_MS
HANG_UP_NS = HANG_UP_PERIODS * PERIOD_NS


def race(seed, duration_s=40):
    """Sessions that come and go, and the length of each of their turns."""
    load = Workload(period_ms=400, deadline_ms=400, duration_s=duration_s, mean_lifetime_s=20)
    specs = load.make_sessions(4, seed)
    rng = np.random.default_rng(seed)
    lengths = {s.session_id: np.minimum(rng.geometric(0.3, s.num_frames), MAX_TOKENS).tolist() for s in specs}
    return specs, lengths


def on_scheduler(specs, lengths, num_blocks):
    """When vLLM's scheduler falls silent, by the same rule, and how many sessions it preempted."""
    engine = vllm_scheduler.Engine(num_blocks, MAX_TOKENS)
    preempted = [0]
    preempt = engine.scheduler._preempt_request

    def count(*args, **more):
        preempted[0] += 1
        return preempt(*args, **more)

    engine.scheduler._preempt_request = count
    by_id = {s.session_id: s for s in specs}
    events = [(s.release_ns(k), False, s.session_id, k) for s in specs for k in range(s.num_frames)]
    events += [(s.end_ns + HANG_UP_NS, True, s.session_id, 0) for s in specs]
    last_ns, spoke_ns = max(e[0] for e in events if not e[1]), 0
    for t_ns, hangs_up, session_id, k in sorted(events):
        silent = t_ns - spoke_ns > COLLAPSE_PERIODS * PERIOD_NS
        if silent and last_ns >= spoke_ns + COLLAPSE_PERIODS * PERIOD_NS:
            return spoke_ns, preempted[0]
        name = str(session_id)
        if hangs_up:
            engine.hang_up(name)
        else:
            engine.say(name, TOKENS_IN, lengths[session_id][k])
            if k == by_id[session_id].num_frames - 1:
                engine.end(name)
        if engine.run():
            spoke_ns = t_ns
    return None, preempted[0]


@pytest.fixture(scope="module")
def races():
    found = []
    for seed in range(24):
        specs, lengths = race(seed)
        num_blocks = 52 + seed % 3 * 8
        pool = Pool(num_blocks=num_blocks, block_size=vllm_scheduler.BLOCK, tokens_in=TOKENS_IN)
        model_ns = first_collapse_ns(specs, pool, [iter(lengths[s.session_id]) for s in specs], HANG_UP_NS)
        real_ns, num_preempted = on_scheduler(specs, lengths, num_blocks)
        found.append((seed, model_ns, real_ns, num_preempted))
        print(found[-1])
    return found


def test_the_model_collapses_exactly_when_the_scheduler_does(races):
    assert [(seed, model) for seed, model, _, _ in races] == [(seed, real) for seed, _, real, _ in races]


def test_the_races_are_worth_comparing(races):
    collapsed = sum(real is not None for _, _, real, _ in races)
    assert 4 <= collapsed <= 20
    assert any(num_preempted for _, _, _, num_preempted in races)
