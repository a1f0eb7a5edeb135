"""The attention kernel in Triton's interpreter, against float64."""

import paged
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metronome_kernels import reference
from metronome_kernels.launch import choose_splits, launch_shape
from metronome_kernels.sink_window import sink_window_attention

from metronome.window import Bound

DTYPES = [torch.bfloat16, torch.float16]
SMALL = (4, 2, 64)

# name: sessions as (cached tokens, of which queries), and the bound
CASES = {
    "irregular lengths": ([(100, 1), (5, 1), (64, 1), (33, 1)], {"window": 32, "sinks": 4}),
    "window shorter than the sinks": ([(90, 1), (21, 1), (3, 1)], {"window": 5, "sinks": 20}),
    "exactly one block": ([(16, 1)], {"window": 16, "sinks": 0}),
    "one block of sinks, one of window": ([(48, 1)], {"window": 16, "sinks": 16}),
    "empty window": ([(70, 1), (2, 1)], {"window": 0, "sinks": 4}),
    "a window of one": ([(70, 1), (1, 1)], {"window": 1, "sinks": 1}),
    "one query in many sessions": ([(n, 1) for n in range(1, 60, 3)], {"window": 16, "sinks": 2}),
    "gap 0": ([(36, 1), (35, 1)], {"window": 32, "sinks": 4}),
    "gap 1": ([(37, 1)], {"window": 32, "sinks": 4}),
    "gap past 100,000": ([(100_301, 1), (200_007, 3)], {"window": 48, "sinks": 4}),
    "window wider than every session": ([(40, 1), (17, 1)], {"window": 4096, "sinks": 4}),
    "short chunks": ([(60, 9), (9, 9), (33, 1), (50, 4)], {"window": 20, "sinks": 4}),
    "a session without queries": ([(60, 3), (40, 0), (30, 2)], {"window": 20, "sinks": 4}),
    "no sinks": ([(60, 3), (8, 1)], {"window": 20, "sinks": 0}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernel_follows_float64(name, dtype):
    sessions, bound = CASES[name]
    batch = paged.make(sessions, **bound, heads=SMALL, dtype=dtype)
    paged.check(f"attention, {name}", batch, paged.frequencies(32))


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(
    ("heads", "num_freq"),
    [((9, 3, 64), 32), ((7, 1, 128), 64), ((2, 2, 80), 40), ((4, 2, 96), 16), ((2, 1, 256), 128)],
    ids=str,
)
def test_kernel_takes_every_head_shape(heads, num_freq, block_size, is_neox):
    batch = paged.make([(70, 1), (23, 1)], window=24, sinks=4, heads=heads, block_size=block_size)
    paged.check("attention, head shapes", batch, paged.frequencies(num_freq), is_neox)


@pytest.mark.parametrize("num_splits", [2, 4, 16])
def test_kernel_joins_what_was_split(num_splits):
    """More splits than some sessions have tiles: what found nothing must count for nothing."""
    batch = paged.make([(400, 1), (70, 2), (3, 1)], window=300, sinks=4, heads=SMALL)
    paged.check("attention, split", batch, paged.frequencies(32), num_splits=num_splits)


def test_kernel_in_float32_is_as_good_as_torch():
    batch = paged.make([(100, 1), (40, 5)], window=32, sinks=4, heads=SMALL, dtype=torch.float32)
    found = paged.run(batch, turn=batch.turn(paged.frequencies(32)))
    exact = reference.sink_window_attention(
        *batch.tensors(torch.float64), **batch.bound, inv_freq=paged.frequencies(32)
    )
    assert (found - exact).abs().max() < 1e-5


def test_kernel_leaves_padding_alone_and_gives_nothing_where_nothing_is_seen():
    batch = paged.make([(20, 2), (9, 1)], window=0, sinks=0, heads=SMALL)
    padded = torch.full((5, 4, 64), float("nan"), dtype=torch.bfloat16)
    query = torch.cat((batch.query, batch.query[:2]))
    arguments = [query, *batch.tensors(torch.bfloat16)[1:]]
    for num_splits in (1, 2):
        output = sink_window_attention(
            *arguments, **batch.bound, max_query_len=2, num_splits=num_splits, output=padded.clone()
        )
        assert (output[:3] == 0).all()
        assert output[3:].isnan().all()


def test_kernel_sees_no_token_too_many_and_none_too_few():
    """Each token's value is its own axis, so that the output names the tokens that were seen."""
    batch = paged.make([(64, 1)], window=5, sinks=3, heads=(1, 1, 64), dtype=torch.float32)
    position = torch.arange(64)
    block, slot = batch.block_table[0, position // 16].long(), position % 16
    batch.key_cache[block, slot, 0] = 0.0
    batch.value_cache[block, slot, 0] = torch.eye(64)
    (seen,) = paged.run(batch)[0, 0].nonzero().T
    bound = Bound(window=5, sinks=3, block_size=1)
    assert seen.tolist() == [*bound.kept_positions(63), 63] == [0, 1, 2, 59, 60, 61, 62, 63]


@given(window=st.integers(1, 50), sinks=st.integers(0, 50), position=st.integers(0, 300))
def test_kernel_gap_is_that_of_a_bound_in_blocks_of_one_token(window, sinks, position):
    (gap,) = reference.gap_of(torch.tensor([position]), window, sinks).tolist()
    assert gap == Bound(window=window, sinks=sinks, block_size=1).gap_blocks(position)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kernel_follows_float64_over_shapes(data):
    window, sinks = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 20))
    cached = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    sessions = [(n, data.draw(st.integers(1, min(n, 4)))) for n in cached]
    group, num_kv_heads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2))
    head_size = data.draw(st.sampled_from([64, 72, 128]))
    batch = paged.make(
        sessions,
        window=window,
        sinks=sinks,
        heads=(group * num_kv_heads, num_kv_heads, head_size),
        block_size=data.draw(st.sampled_from([16, 32])),
        dtype=data.draw(st.sampled_from(DTYPES)),
        seed=data.draw(st.integers(0, 9)),
    )
    num_freq = data.draw(st.sampled_from([0, head_size // 4, head_size // 2]))
    inv_freq = paged.frequencies(num_freq) if num_freq else None
    num_splits = data.draw(st.sampled_from([None, 2]))
    paged.check("attention, any shape", batch, inv_freq, data.draw(st.booleans()), num_splits=num_splits)


def test_kernel_splits_only_where_sessions_are_few():
    cpu = torch.device("cpu")
    assert choose_splits(num_programs=1, window=4096, tile=64, device=cpu) == 4
    assert choose_splits(num_programs=2, window=4096, tile=64, device=cpu) == 2
    assert choose_splits(num_programs=64, window=4096, tile=64, device=cpu) == 1
    assert choose_splits(num_programs=1, window=128, tile=64, device=cpu) == 1  # two tiles each, or it is not worth it
    assert choose_splits(num_programs=1, window=0, tile=64, device=cpu) == 1


@pytest.mark.parametrize("group", [1, 3, 7, 16, 24])
def test_kernel_rows_hold_whole_groups(group):
    for max_query_len in (1, 2, 100):
        shape = launch_shape(group, 128, max_query_len)
        assert shape["BLOCK_M"] >= shape["BLOCK_Q"] * group > 0
