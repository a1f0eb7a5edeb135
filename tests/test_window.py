"""The bound against its definition, token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome.window import Bound, blocks_for


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    block_size = draw(st.sampled_from([1, 2, 8, 16, 32]))
    return Bound(
        window=draw(st.integers(block_size, 8 * block_size + 3)),
        sinks=draw(st.integers(0, 3 * block_size + 1)),
        positions=draw(st.sampled_from(["keep", "anchor"])),
        block_size=block_size,
    )


lengths = st.integers(0, 1000)
chunks = st.integers(1, 100)


def kept_by_definition(bound: Bound, num_computed: int) -> set[int]:
    """Whole blocks that hold a sink, or a token the next query's window reaches."""
    size = bound.block_size
    nearest = num_computed - bound.window + 1

    def stays(position: int) -> bool:
        block = position // size
        is_sink = block * size < bound.sinks
        return is_sink or (block + 1) * size > nearest

    return {position for position in range(num_computed) if stays(position)}


@given(bounds(), lengths)
def test_keeps_sinks_and_most_recent_tokens_in_order(bound: Bound, num_computed: int) -> None:
    kept = bound.kept_positions(num_computed)
    assert kept == sorted(kept_by_definition(bound, num_computed))
    assert len(kept) == bound.held_tokens(num_computed)


@given(bounds(), lengths, chunks)
def test_every_query_sees_its_window(bound: Bound, num_computed: int, chunk: int) -> None:
    visible = {*bound.kept_positions(num_computed), *range(num_computed, num_computed + chunk)}
    for query in range(num_computed, num_computed + chunk):
        assert visible >= set(range(max(query - bound.window + 1, 0), query + 1))


@given(bounds(), lengths, chunks)
def test_a_dropped_token_never_comes_back(bound: Bound, num_computed: int, chunk: int) -> None:
    before = kept_by_definition(bound, num_computed)
    after = set(bound.kept_positions(num_computed + chunk))
    assert after <= before | set(range(num_computed, num_computed + chunk))


@given(bounds(), lengths, chunks)
def test_blocks_held_are_those_of_kept_and_new_tokens(bound: Bound, num_computed: int, chunk: int) -> None:
    tokens = [*bound.kept_positions(num_computed), *range(num_computed, num_computed + chunk)]
    blocks = {position // bound.block_size for position in tokens}
    assert bound.num_blocks(num_computed, num_computed + chunk) == len(blocks)
    assert len(blocks) <= bound.max_blocks(chunk)


@given(bounds(), chunks)
def test_the_plateau_is_reached_within_one_block(bound: Bound, chunk: int) -> None:
    longest = max(bound.num_blocks(start, start + chunk) for start in range(1000, 1100))
    assert bound.max_blocks(chunk) - 1 <= longest <= bound.max_blocks(chunk)


@given(bounds(), lengths)
def test_the_gap_is_what_is_missing_in_the_middle(bound: Bound, num_computed: int) -> None:
    missing = set(range(num_computed)) - set(bound.kept_positions(num_computed))
    assert {position // bound.block_size for position in missing} == set(
        range(bound.num_sink_blocks, bound.num_sink_blocks + bound.gap_blocks(num_computed))
    )


@given(st.integers(0, 10_000), st.integers(1, 256))
def test_blocks_for(num_tokens: int, block_size: int) -> None:
    blocks = blocks_for(num_tokens, block_size)
    assert (blocks - 1) * block_size < num_tokens <= blocks * block_size


def test_anchored_needs_sinks() -> None:
    assert Bound(window=64, sinks=1).anchored
    assert not Bound(window=64, sinks=0).anchored
    assert not Bound(window=64, sinks=1, positions="keep").anchored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 31}, "kv.window=31: smaller than one block of 32 tokens; set kv.window to 32"),
        ({"window": "512"}, "kv.window='512': must be a whole number of tokens"),
        ({"sinks": 1.5}, "kv.sinks=1.5: must be a whole number of tokens"),
        ({"sinks": True}, "kv.sinks=True: must be a whole number of tokens"),
        ({"sinks": -1}, "kv.sinks=-1: must be 0 or more tokens"),
        ({"positions": "float"}, "kv.positions='float': must be one of keep, anchor"),
        ({"block_size": 0}, "engine.block_size=0: must be at least 1 token"),
    ],
)
def test_bad_values_name_key_value_and_fix(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"window": 64, "block_size": 32}
    with pytest.raises(ValueError) as caught:
        Bound(**(arguments | change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "additional_config.metronome.window is missing: set it in tokens, e.g. 512"),
        ({"window": 64, "sink": 4}, "additional_config.metronome.sink: unknown option; known: "),
        ({"window": 8}, "set additional_config.metronome.window to 32 or more"),
    ],
)
def test_options_are_named_as_the_user_wrote_them(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Bound.from_options(options, block_size=32)
    assert message in str(caught.value)
    assert "kv." not in str(caught.value)


def test_options_default_to_anchored_positions_and_no_sinks() -> None:
    bound = Bound.from_options({"window": 512, "report_dir": "/tmp/live"}, block_size=16)
    assert bound == Bound(window=512, sinks=0, positions="anchor", block_size=16)
