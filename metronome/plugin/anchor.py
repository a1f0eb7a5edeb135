"""Anchored sinks in the worker: raw sink keys, and their rotation as the window slides.

A sink key is cached rotated to its own position. When `gap` tokens leave the middle, the sinks
must look `gap` positions nearer to the query, so they are rotated forward by `gap`, each time from
the raw key: no drift.

Raw keys and values live in `num_slots` block-sized slots per layer. A slot belongs to a physical
sink block: the scheduler hands sink blocks from session to session (`SinkWindowManager`), so there
are never more of them than sessions times sink blocks. All tables are tensors of fixed shape, and
none is indexed by a batch row: rows may come, go and change places.

On the host, work is done for the tokens and sinks that need it. On a GPU finding these would make
the host wait, and CUDA graphs want fixed shapes, so there every row is computed and the unwanted
results go to a bin: a spare raw row, or slot -1, which vLLM's cache kernels skip.
"""

from typing import Any

import torch

from metronome.plugin.rotary import Rotation
from metronome.plugin.table import SinkRows


class SlotTable:
    """Which slot holds the raw keys of which physical block.

    Slot `num_slots` is a bin for blocks that are no sinks; block 0 is vLLM's null block.
    """

    def __init__(self, num_slots: int, num_blocks: int, device: torch.device) -> None:
        self.num_slots = num_slots
        # One entry more than blocks: a padded slot mapping of -1 reads the last one.
        self.slot_of_block = torch.full((num_blocks + 1,), num_slots, device=device)
        self.block_of_slot = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.applied_shift = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)

    def forget(self, blocks: torch.Tensor) -> None:
        """Blocks [*] that windows hold are sinks no more."""
        self.block_of_slot[self.slot_of_block[blocks]] = 0
        self.slot_of_block[blocks] = self.num_slots

    def assign(self, blocks: torch.Tensor) -> None:
        """Give each sink block [K] a slot, if it has none; block 0 is ignored."""
        is_new = (self.slot_of_block[blocks] == self.num_slots) & (blocks > 0)
        is_free = self.block_of_slot[: self.num_slots] == 0
        by_freedom = torch.argsort(is_free.to(torch.int8), descending=True, stable=True)
        rank = torch.cumsum(is_new, 0) - 1
        is_new &= rank < is_free.sum()
        slot = by_freedom[rank.clamp(0, self.num_slots - 1)]
        slot = torch.where(is_new, slot, self.num_slots)
        block = torch.where(is_new, blocks, 0)
        self.slot_of_block[block] = slot
        self.slot_of_block[0] = self.num_slots
        self.block_of_slot[slot] = block
        self.applied_shift[slot] = 0

    def moved(self, slot: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Whether the sinks in `slot` [K] must be rotated to `shift` [K], and note that they are.

        A shift of 0 needs nothing: the session's own forward pass writes its keys unshifted.
        """
        is_moved = (slot < self.num_slots) & (shift > 0) & (self.applied_shift[slot] != shift)
        self.applied_shift[slot] = shift
        return is_moved


class SinkAnchor:
    """Keeps and rotates the sinks of one group of layers."""

    def __init__(
        self,
        layers: list[Any],
        rotation: Rotation,
        num_slots: int,
        block_size: int,
        max_num_tokens: int,
        device: torch.device,
    ) -> None:
        self.layers = layers
        self.rotation = rotation
        self.num_slots = num_slots
        self.block_size = block_size
        self.device = device
        self.slots: SlotTable | None = None
        self.offset = torch.arange(block_size, device=device)
        self.bin_row = num_slots * block_size
        # Where each token of the step goes in the raw store; this buffer keeps its address.
        self.raw_row = torch.full((max_num_tokens,), self.bin_row, device=device)
        self.sink_tokens = torch.zeros(0, dtype=torch.int64, device=device)
        for layer in layers:
            layer.impl.attach(self, layer)

    @property
    def on_host(self) -> bool:
        return self.device.type == "cpu"

    def raw_store(self, layer: Any, head_size: int) -> torch.Tensor:
        """In the model's dtype, which is that of the keys: float32 would keep nothing more."""
        shape = (self.bin_row + 1, layer.num_kv_heads, head_size)
        return torch.zeros(shape, dtype=layer.dtype, device=self.device)

    def begin_step(self, slot_mapping: torch.Tensor, rows: SinkRows) -> None:
        """Before the forward pass: follow the blocks, rotate what moved, find the sink tokens."""
        if self.slots is None:
            # Layers are given their caches after the builders, and this, are made.
            num_blocks = self.layers[0].kv_cache.shape[0]
            self.slots = SlotTable(self.num_slots, num_blocks, self.device)
        self.slots.forget(rows.window_blocks)
        self.slots.assign(rows.sink_blocks.flatten())
        self._rotate(self.slots, rows)
        self._locate_sink_tokens(self.slots, slot_mapping)

    def capture(self, raw: torch.Tensor, fresh: torch.Tensor, num_tokens: int) -> None:
        """Keep the sink tokens among `fresh` [T, H, D], one layer's keys or values."""
        if not self.on_host:
            raw.index_copy_(0, self.raw_row[:num_tokens], fresh[:num_tokens])
        elif self.sink_tokens.numel() > 0:
            raw[self.raw_row[self.sink_tokens]] = fresh[self.sink_tokens]

    def _locate_sink_tokens(self, slots: SlotTable, slot_mapping: torch.Tensor) -> None:
        slot = slots.slot_of_block[slot_mapping // self.block_size]
        row = slot * self.block_size + slot_mapping % self.block_size
        row = torch.where(slot < self.num_slots, row, self.bin_row)
        self.raw_row[: row.numel()] = row
        if self.on_host:
            self.sink_tokens = (row < self.bin_row).nonzero().flatten()

    def _rotate(self, slots: SlotTable, rows: SinkRows) -> None:
        blocks = rows.sink_blocks.flatten()
        slot = slots.slot_of_block[blocks]
        shift = rows.shift.repeat_interleave(rows.sink_blocks.shape[1])
        is_moved = slots.moved(slot, shift)
        if not rows.any_shift:
            return
        if self.on_host:
            chosen = is_moved.nonzero().flatten()
            if chosen.numel() == 0:
                return
            blocks, slot, shift, is_moved = (x[chosen] for x in (blocks, slot, shift, is_moved))
        cos, sin = self.rotation.cos_sin(shift)
        source = self._tokens_of(slot.clamp(max=self.num_slots - 1))
        target = torch.where(is_moved[:, None], self._tokens_of(blocks), -1).flatten()
        for layer in self.layers:
            layer.impl.write_sinks(layer, source, target, cos, sin)

    def _tokens_of(self, blocks: torch.Tensor) -> torch.Tensor:
        """blocks: [K] -> token rows [K, block_size]."""
        return blocks[:, None] * self.block_size + self.offset
