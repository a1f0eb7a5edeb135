"""The bound in tensors: each step's block table, compacted to [sinks | window].

Blocks here are the kernel's, which may be smaller than those the bound is rounded to.
"""

from dataclasses import dataclass
from typing import Any

import torch

from metronome.plugin.compat import CommonAttentionMetadata, VllmConfig
from metronome.plugin.kv_cache import SinkWindowSpec
from metronome.window import blocks_for


@dataclass(frozen=True)
class SinkRows:
    """One step's batch as the sinks see it; padded and dummy rows hold block 0."""

    sink_blocks: torch.Tensor  # [R, S] physical blocks
    window_blocks: torch.Tensor  # [R, W] physical blocks, 0 where unused
    shift: torch.Tensor  # [R] tokens missing between sinks and window
    any_shift: bool  # whether the host knows of a shift, or knows nothing


class WindowTable:
    """Builds what the kernel shall see, in buffers that keep their address for CUDA graphs."""

    def __init__(self, spec: SinkWindowSpec, config: VllmConfig, device: torch.device) -> None:
        scheduler, max_model_len = config.scheduler_config, config.model_config.max_model_len
        self.bound = spec.bound(spec.bound_block_size)
        self.block_size = spec.block_size
        self.blocks_per_unit = spec.bound_block_size // spec.block_size
        self.num_sink_blocks = self.bound.num_sink_blocks * self.blocks_per_unit
        plateau = self.bound.max_blocks(scheduler.max_num_batched_tokens) * self.blocks_per_unit
        width = min(plateau, blocks_for(max_model_len, self.block_size))
        rows = scheduler.max_num_seqs
        self.column = torch.arange(width, device=device)
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32, device=device)

    def gap_blocks(self, num_computed_tokens: torch.Tensor) -> torch.Tensor:
        """`Bound.gap_blocks` for [R] rows, in kernel blocks."""
        bound = self.bound
        first = (num_computed_tokens - bound.window + 1).clamp(min=0) // bound.block_size
        gap: torch.Tensor = (first - bound.num_sink_blocks).clamp(min=0) * self.blocks_per_unit
        return gap

    def compact(self, full: CommonAttentionMetadata, gap: torch.Tensor) -> Any:
        """The batch without the `gap` [R] blocks that follow each row's sinks."""
        num_rows, num_columns = full.block_table_tensor.shape
        source = self.column + gap[:, None] * (self.column >= self.num_sink_blocks)
        table, seq_lens = self.table[:num_rows], self.seq_lens[:num_rows]
        torch.gather(full.block_table_tensor, 1, source.clamp(max=num_columns - 1), out=table)
        torch.sub(full.seq_lens, gap * self.block_size, out=seq_lens)
        return full.replace(
            block_table_tensor=table,
            seq_lens=seq_lens,
            max_seq_len=min(full.max_seq_len, self.column.numel() * self.block_size),
            seq_lens_cpu_upper_bound=self._host_seq_lens(full),
            _num_computed_tokens_cache=None,
        )

    def sink_rows(self, full: CommonAttentionMetadata, gap: torch.Tensor) -> SinkRows:
        """The blocks of real rows, after `compact`. Padding has no query, a dummy no slots."""
        num_rows = full.num_reqs
        start, last_token = full.query_start_loc[:-1], full.slot_mapping.numel() - 1
        has_slots = full.slot_mapping[start.clamp(max=last_token)] >= 0
        is_real = (full.naive_query_lens() > 0) & has_slots
        is_held = self.column * self.block_size < self.seq_lens[:num_rows, None]
        blocks = torch.where(is_held & is_real[:, None], self.table[:num_rows], 0).long()
        sinks = self.num_sink_blocks
        shift = (gap * self.block_size).long()
        return SinkRows(blocks[:, :sinks], blocks[:, sinks:], shift, self._any_shift(full))

    def _host_gap(self, full: CommonAttentionMetadata) -> torch.Tensor | None:
        # Exact, not only an upper bound: speculative decoding is refused.
        seq_lens, start = full.seq_lens_cpu_upper_bound, full.query_start_loc_cpu
        return None if seq_lens is None else self.gap_blocks(seq_lens - (start[1:] - start[:-1]))

    def _host_seq_lens(self, full: CommonAttentionMetadata) -> torch.Tensor | None:
        gap, seq_lens = self._host_gap(full), full.seq_lens_cpu_upper_bound
        return None if gap is None else (seq_lens - gap * self.block_size).to(seq_lens.dtype)

    def _any_shift(self, full: CommonAttentionMetadata) -> bool:
        gap = self._host_gap(full)
        return gap is None or bool((gap > 0).any())
