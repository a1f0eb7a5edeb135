"""Anchored sinks in the worker: raw sink keys, and their rotation as the window slides.

A sink key is cached rotated to its own position. When `gap` tokens leave the middle, the sinks
must look `gap` positions nearer to the query, so they are rotated forward by `gap`, each time from
the raw key: no drift.

Raw keys and values live in `num_slots` block-sized slots per layer. A slot belongs to a physical
sink block: the scheduler hands sink blocks from session to session (`SinkWindowManager`), so there
are never more of them than sessions times sink blocks. All tables are tensors of fixed shape, and
a batch row is never looked at alone: rows may come and go in any order.
"""

from dataclasses import dataclass
from typing import Any

import torch

from metronome.plugin.rotary import Rotation


class SlotTable:
    """Which slot holds the raw keys of which physical block.

    Slot `num_slots` is a bin for blocks that are no sinks; block 0 is vLLM's null block.
    """

    def __init__(self, num_slots: int, num_blocks: int, device: torch.device) -> None:
        self.num_slots = num_slots
        # One entry more than blocks: a padded slot mapping of -1 reads the last one.
        self.slot_of_block = torch.full((num_blocks + 1,), num_slots, device=device)
        self.block_of_slot = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self.applied = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)

    def forget(self, blocks: torch.Tensor) -> None:
        """Blocks [*] that windows hold are sinks no more."""
        self.block_of_slot[self.slot_of_block[blocks]] = 0
        self.slot_of_block[blocks] = self.num_slots

    def assign(self, blocks: torch.Tensor) -> None:
        """Give each sink block [K] a slot, if it has none; 0 is ignored."""
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
        self.applied[slot] = 0


@dataclass(frozen=True)
class SinkRows:
    """One step's batch as the sinks see it; padded and dummy rows hold block 0."""

    sink_blocks: torch.Tensor  # [R, S] physical blocks
    window_blocks: torch.Tensor  # [R, W] physical blocks, 0 where unused
    shift: torch.Tensor  # [R] tokens missing between sinks and window


class SinkAnchor:
    """Keeps and rotates the sinks of one group of layers."""

    def __init__(
        self, layers: list[Any], rotation: Rotation, num_slots: int, block_size: int
    ) -> None:
        self.layers = layers
        self.rotation = rotation
        self.block_size = block_size
        kv_cache = layers[0].kv_cache
        self.device = kv_cache.device
        self.slots = SlotTable(num_slots, kv_cache.shape[0], self.device)
        self.offsets = torch.arange(block_size, device=self.device)
        self.bin_row = num_slots * block_size
        for layer in layers:
            shape = (self.bin_row + 1, layer.num_kv_heads)
            layer.impl.raw_keys = self._raw(shape, layer.head_size, layer.dtype)
            layer.impl.raw_values = self._raw(shape, layer.head_size_v, layer.dtype)
            layer.impl.anchor = self
        self.token_rows = torch.zeros(0, dtype=torch.int64)
        self.raw_rows = torch.zeros(0, dtype=torch.int64)

    def _raw(self, shape: tuple[int, int], head_size: int, dtype: torch.dtype) -> torch.Tensor:
        # In the model's dtype, which is what the layer hands over: float32 would add nothing.
        return torch.zeros(*shape, head_size, dtype=dtype, device=self.device)

    def begin_step(self, slot_mapping: torch.Tensor, rows: SinkRows) -> None:
        """Update the slots, rotate the sinks that moved, and find this step's sink tokens."""
        self.slots.forget(rows.window_blocks)
        self.slots.assign(rows.sink_blocks.flatten())
        self._rotate(rows)
        self._locate_sink_tokens(slot_mapping)

    def capture(self, impl: Any, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep the raw keys and values of this step's sink tokens, for one layer."""
        if self.token_rows.numel():
            impl.raw_keys[self.raw_rows] = key[self.token_rows]
            impl.raw_values[self.raw_rows] = value[self.token_rows]

    def _locate_sink_tokens(self, slot_mapping: torch.Tensor) -> None:
        slot = self.slots.slot_of_block[slot_mapping // self.block_size]
        self.token_rows = (slot < self.slots.num_slots).nonzero().flatten()
        offset = slot_mapping[self.token_rows] % self.block_size
        self.raw_rows = slot[self.token_rows] * self.block_size + offset

    def _rotate(self, rows: SinkRows) -> None:
        slot = self.slots.slot_of_block[rows.sink_blocks]
        shift = rows.shift[:, None].expand_as(slot)
        moved = (slot < self.slots.num_slots) & (shift > 0) & (self.slots.applied[slot] != shift)
        chosen = moved.flatten().nonzero().flatten()
        if chosen.numel() == 0:
            return
        slot, shift = slot.flatten()[chosen], shift.flatten()[chosen]
        self.slots.applied[slot] = shift
        cos, sin = self.rotation.cos_sin(shift)
        source = self._tokens_of(slot)
        target = self._tokens_of(rows.sink_blocks.flatten()[chosen]).flatten()
        for layer in self.layers:
            keys = self.rotation.turn(layer.impl.raw_keys[source], cos, sin).flatten(0, 1)
            values = layer.impl.raw_values[source].flatten(0, 1)
            layer.impl.write_sinks(layer, keys, values, target)

    def _tokens_of(self, blocks: torch.Tensor) -> torch.Tensor:
        """blocks: [K] -> token rows [K, block_size]."""
        return blocks[:, None] * self.block_size + self.offsets
