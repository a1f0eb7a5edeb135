"""The forecast as an operator sees it: gauges by name and label, and one line in the log."""

import logging
import math
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from metronome.frames import NS_PER_S
from metronome.plugin import metrics

NUM_BLOCKS = 201  # one of them the null block


def config(name, **options):
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name=name),
        cache_config=SimpleNamespace(num_gpu_blocks=NUM_BLOCKS, block_size=32),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=256),
        additional_config=options,
    )


def stats(used, waiting=6):
    return SimpleNamespace(
        kv_cache_usage=used / (NUM_BLOCKS - 1), num_running_reqs=0, num_waiting_reqs=0, num_skipped_waiting_reqs=waiting
    )


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=0)
    monkeypatch.setattr(metrics.time, "monotonic_ns", lambda: now.s * NS_PER_S)
    return now


def feed(logger, clock, levels, **more):
    for used in levels:
        logger.record(stats(used, **more), None)
        clock.s += 1


def gauge(name, model):
    labels = {"model_name": model, "engine": "0"}
    return REGISTRY.get_sample_value(f"metronome:kv_cache_exhaustion_{name}", labels)


def test_a_pool_that_fills_shows_its_time_and_warns_once(clock, caplog):
    logger = metrics.ExhaustionLogger(config("filling"))
    with caplog.at_level(logging.WARNING, "vllm.metronome"):
        feed(logger, clock, [0, 4, 8])
        assert gauge("seconds", "filling") == math.inf and gauge("alarm", "filling") == 0
        feed(logger, clock, range(12, 180, 4))
    assert gauge("seconds", "filling") == pytest.approx((200 - 176) / 4, abs=0.5)
    assert gauge("low_seconds", "filling") <= gauge("seconds", "filling")
    assert gauge("alarm", "filling") == 1
    (line,) = [r.getMessage() for r in caplog.records]
    assert "KV cache 4" in line and "% full, and full in" in line and "admit no more sessions" in line


def test_a_bounded_engine_is_not_warned_of_while_it_fills(clock):
    logger = metrics.ExhaustionLogger(config("bounded", metronome={"window": 256, "sinks": 4}))
    feed(logger, clock, range(0, 110, 4))
    assert gauge("seconds", "bounded") == math.inf and gauge("alarm", "bounded") == 0


def test_nothing_is_shown_before_the_engine_knows_its_pool(clock):
    early = config("early")
    early.cache_config.num_gpu_blocks = None
    metrics.ExhaustionLogger(early).record(stats(10), None)
    metrics.ExhaustionLogger(config("early")).record(None, None)
    assert gauge("seconds", "early") is None


def test_vllm_finds_it():
    from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

    assert metrics.ExhaustionLogger in load_stat_logger_plugin_factories()
