"""The worker's side without an engine: what a stock kernel is given to see."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool import spec_for
from vllm.v1.attention.backend import CommonAttentionMetadata

from metronome.plugin.table import WindowTable
from metronome.window import Bound, blocks_for

MAX_CHUNK, MAX_ROWS, MAX_LEN = 24, 4, 400
CPU = torch.device("cpu")

# (tokens computed, tokens in the chunk) of each row
batches = st.lists(st.tuples(st.integers(0, 300), st.integers(1, MAX_CHUNK)), min_size=1, max_size=MAX_ROWS)
bounds = st.builds(Bound, window=st.integers(8, 50), sinks=st.integers(0, 20), block_size=st.just(8))


def table_for(bound: Bound, kernel_block_size: int) -> WindowTable:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=MAX_CHUNK, max_num_seqs=MAX_ROWS),
        model_config=SimpleNamespace(max_model_len=MAX_LEN),
    )
    return WindowTable(spec_for(bound, kernel_block_size), config, CPU)


def batch_metadata(rows: list[tuple[int, int]], block_size: int) -> CommonAttentionMetadata:
    """A step of these rows, each with blocks of its own; block 0 stays the null block."""
    width = blocks_for(MAX_LEN, block_size)
    table = 1 + torch.arange(len(rows) * width, dtype=torch.int32).view(len(rows), width)
    start = torch.tensor([0, *(num_tokens for _, num_tokens in rows)]).cumsum(0).int()
    seq_lens = torch.tensor([sum(row) for row in rows], dtype=torch.int32)
    positions = [torch.arange(computed, computed + chunk) for computed, chunk in rows]
    slots = [table[row][where // block_size] * block_size + where % block_size for row, where in enumerate(positions)]
    return CommonAttentionMetadata(
        query_start_loc=start,
        query_start_loc_cpu=start,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=len(rows),
        num_actual_tokens=int(start[-1]),
        max_query_len=max(chunk for _, chunk in rows),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=table,
        slot_mapping=torch.cat(slots).long(),
    )


def compacted(table: WindowTable, full: CommonAttentionMetadata) -> tuple[Any, torch.Tensor]:
    gap = table.gap_blocks(full.compute_num_computed_tokens())
    return table.compact(full, gap), gap


@settings(deadline=None)
@given(bounds, batches, st.sampled_from([2, 4, 8]))
def test_shows_the_kept_tokens_and_the_chunk(bound: Bound, rows: list[tuple[int, int]], block_size: int) -> None:
    table = table_for(bound, block_size)
    full = batch_metadata(rows, block_size)
    seen, _ = compacted(table, full)
    for row, (computed, chunk) in enumerate(rows):
        tokens = [*bound.kept_positions(computed), *range(computed, computed + chunk)]
        assert seen.seq_lens[row] == len(tokens)
        blocks = dict.fromkeys(position // block_size for position in tokens)
        expected = full.block_table_tensor[row, list(blocks)]
        assert torch.equal(seen.block_table_tensor[row, : len(blocks)], expected)
    assert torch.equal(seen.seq_lens_cpu_upper_bound, seen.seq_lens)
    assert int(seen.seq_lens.max()) <= seen.max_seq_len <= table.column.numel() * block_size
    assert torch.equal(seen.slot_mapping, full.slot_mapping)


@given(bounds, st.integers(0, 1_000_000), st.sampled_from([2, 4, 8]))
def test_the_gap_is_the_bounds_own(bound: Bound, computed: int, block_size: int) -> None:
    gap = table_for(bound, block_size).gap_blocks(torch.tensor([computed]))
    assert gap.item() * block_size == bound.gap_blocks(computed) * bound.block_size


def test_buffers_keep_their_address_for_cuda_graphs() -> None:
    table = table_for(Bound(window=16, sinks=8, block_size=8), 8)
    addresses = set()
    for computed in (0, 100, 300):
        seen, _ = compacted(table, batch_metadata([(computed, 1)], 8))
        addresses.add((seen.block_table_tensor.data_ptr(), seen.seq_lens.data_ptr()))
        assert seen.block_table_tensor.stride() == (table.column.numel(), 1)
    assert len(addresses) == 1


def test_sinks_of_padding_and_dummy_rows_are_nobodys() -> None:
    bound = Bound(window=16, sinks=8, block_size=8)
    table = table_for(bound, 8)
    full = batch_metadata([(200, 3), (200, 2), (0, 5)], 8)
    full.slot_mapping[3:5] = -1  # a dummy row: no slots
    full.query_start_loc = torch.tensor([0, 3, 5, 5], dtype=torch.int32)  # the last one is padding
    _, gap = compacted(table, full)
    rows = table.sink_rows(full, gap)
    assert rows.sink_blocks[0].tolist() == full.block_table_tensor[0, :1].tolist()
    assert rows.sink_blocks[1:].eq(0).all() and rows.window_blocks[1:].eq(0).all()
    assert rows.shift[0] == bound.gap_blocks(200) * 8
    assert rows.any_shift


def test_unused_columns_are_nobodys_window() -> None:
    table = table_for(Bound(window=16, sinks=8, block_size=8), 8)
    full = batch_metadata([(4, 3)], 8)
    _, gap = compacted(table, full)
    rows = table.sink_rows(full, gap)
    assert rows.sink_blocks.tolist() == [[1]]
    assert rows.window_blocks.eq(0).all()
    assert not rows.any_shift


def test_without_host_lengths_nothing_is_read_back() -> None:
    table = table_for(Bound(window=16, sinks=8, block_size=8), 8)
    full = batch_metadata([(4, 3)], 8)
    full.seq_lens_cpu_upper_bound = None
    seen, gap = compacted(table, full)
    assert seen.seq_lens_cpu_upper_bound is None
    assert table.sink_rows(full, gap).any_shift, "not knowing must not skip a rotation"
