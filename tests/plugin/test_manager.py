"""The scheduler's side: blocks held, given up and returned, under any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool import MAX_MODEL_LEN, Pool, spec_for
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from metronome.plugin.compat import KVCacheSpecRegistry
from metronome.plugin.kv_cache import SinkWindowManager, SinkWindowSpec
from metronome.window import Bound, blocks_for

NUM_BLOCKS = 40
NAMES = ["a", "b", "c", "d"]

bounds = st.builds(Bound, window=st.integers(4, 20), sinks=st.integers(0, 9), block_size=st.just(4))
events = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-2, 24)), min_size=30, max_size=120)


@settings(deadline=None)
@given(bounds, events)
def test_holds_what_the_bound_says_and_leaks_nothing(bound: Bound, events: list[tuple[str, int]]) -> None:
    pool = Pool(bound, NUM_BLOCKS, max_chunk=24)
    most = pool.spec.max_admission_blocks_per_request(24, MAX_MODEL_LEN)
    for name, num_tokens in events:
        if num_tokens <= 0:
            pool.drop(name)
        elif pool.grow(name, num_tokens):
            one = pool.served[name]
            held = [block for block in pool.held(name) if block]
            assert len(held) == bound.num_blocks(one.start, one.request.num_computed_tokens)
            assert len(held) <= most
        check_ownership(pool)
    for name in NAMES:
        pool.drop(name)
    assert pool.num_free == NUM_BLOCKS - 1


def check_ownership(pool: Pool) -> None:
    held = [block for name in pool.served for block in pool.held(name) if block]
    assert len(held) == len(set(held)), "two sessions hold one block"
    assert pool.num_free == NUM_BLOCKS - 1 - len(held)


@settings(deadline=None)
@given(bounds, st.lists(st.integers(1, 24), min_size=1, max_size=40))
def test_keeps_exactly_the_blocks_of_kept_and_new_tokens(bound: Bound, chunks: list[int]) -> None:
    pool = Pool(bound, NUM_BLOCKS, max_chunk=24)
    for num_tokens in chunks:
        assert pool.grow("a", num_tokens)
        start, end = pool.served["a"].start, pool.served["a"].request.num_computed_tokens
        tokens = [*bound.kept_positions(start), *range(start, end)]
        expected = {position // bound.block_size for position in tokens}
        assert {index for index, block in enumerate(pool.held("a")) if block} == expected


@settings(deadline=None)
@given(bounds, events)
def test_never_more_sink_blocks_than_sessions_need(bound: Bound, events: list[tuple[str, int]]) -> None:
    """The worker relies on it: blocks once used for sinks, and not for a window since."""
    pool = Pool(bound, NUM_BLOCKS, max_chunk=24)
    sinks: set[int] = set()
    for name, num_tokens in events:
        if num_tokens <= 0:
            pool.drop(name)
        elif pool.grow(name, num_tokens):
            held = pool.held(name)
            sinks -= set(held[bound.num_sink_blocks :])
            sinks |= set(held[: bound.num_sink_blocks])
        assert len(sinks) <= len(NAMES) * bound.num_sink_blocks


def test_a_crowded_pool_waits_instead_of_taking_held_blocks() -> None:
    pool = Pool(Bound(window=8, sinks=4, block_size=4), num_blocks=6, max_chunk=24)
    assert pool.grow("a", 16)
    assert not pool.grow("b", 8)
    assert pool.grow("a", 4), "a slid window pays for its own new block"
    pool.drop("a")
    assert pool.grow("b", 8)


@pytest.mark.parametrize("max_model_len", [64, 1_000_000])
def test_asks_of_the_pool_the_plateau_not_the_longest_session(max_model_len: int) -> None:
    bound = Bound(window=256, sinks=4, block_size=32)
    most = spec_for(bound).max_admission_blocks_per_request(128, max_model_len)
    assert most == min(bound.max_blocks(128), blocks_for(max_model_len, 32))


def test_groups_layers_of_one_bound_only() -> None:
    one = spec_for(Bound(window=64, sinks=4, block_size=4))
    other = spec_for(Bound(window=64, sinks=8, block_size=4))
    stock = SlidingWindowSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=one.dtype, sliding_window=64)
    assert one.is_uniform_with_collection({"x": one, "y": one})
    assert not one.is_uniform_with_collection({"x": one, "y": other})
    assert not one.is_uniform_with_collection({"x": one, "y": stock})


def test_registering_keeps_what_vllm_registers() -> None:
    import metronome.plugin

    metronome.plugin.register()
    metronome.plugin.register()
    bounded = spec_for(Bound(window=64, block_size=4))
    stock = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=bounded.dtype)
    assert KVCacheSpecRegistry.get_manager_class(bounded) is SinkWindowManager
    assert KVCacheSpecRegistry.get_manager_class(stock).__name__ == "FullAttentionManager"
    assert isinstance(bounded, SinkWindowSpec)
    assert bounded.page_size_bytes == stock.page_size_bytes
