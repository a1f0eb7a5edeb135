"""Sink keys in the cache, under any order of sessions, chunks, aborts and reuse of blocks.

vLLM's own block manager decides the blocks; the cache is a tensor; a session's raw keys are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool import Pool, Served
from test_table import MAX_CHUNK, MAX_ROWS, compacted, table_for
from vllm.v1.attention.backend import CommonAttentionMetadata

from metronome.plugin import compat
from metronome.plugin.anchor import SinkAnchor
from metronome.plugin.attention import SinkWindowImpl
from metronome.plugin.rotary import Rotation
from metronome.window import Bound

BLOCK_SIZE, HEADS, HEAD_SIZE, NUM_BLOCKS = 8, 2, 4, 24
NAMES = ["a", "b", "c", "d"]
ROTATION = Rotation(torch.tensor([1.0, 0.01], dtype=torch.float64), is_neox_style=True)

bounds = st.builds(
    Bound,
    window=st.integers(BLOCK_SIZE, 30),
    sinks=st.integers(1, 2 * BLOCK_SIZE),
    block_size=st.just(BLOCK_SIZE),
)
# Each step schedules some sessions in some order; a session given no tokens is dropped instead.
parts = st.tuples(st.sampled_from(NAMES), st.sampled_from([0, 1, 1, 3, 5, 6, 6, 6, 6, 6]))
steps = st.lists(
    st.lists(parts, min_size=1, max_size=MAX_ROWS, unique_by=lambda part: part[0]),
    min_size=20,
    max_size=100,
)


@pytest.fixture(autouse=True, scope="module")
def forward_pass() -> Iterator[SimpleNamespace]:
    """Stands in for vLLM's forward context, which says whether a builder prepared the pass."""
    now = SimpleNamespace(attn_metadata=object())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "get_forward_context", lambda: now)
        yield now


class PlainCache:
    """A stock implementation: writes keys and values where it is told to."""

    kv_cache_dtype = "auto"

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, cache: Any, slots: torch.Tensor
    ) -> None:
        written = slots[slots >= 0]
        fresh = torch.cat((key, value), dim=-1)[: slots.numel()][slots >= 0]
        layer.kv_cache[written // BLOCK_SIZE, :, written % BLOCK_SIZE] = fresh


class Impl(SinkWindowImpl, PlainCache):
    pass


class ImplThatWritesKeysAlone(Impl):
    keys_before_values = True


def layer(impl: Any) -> Any:
    return SimpleNamespace(
        impl=impl,
        num_kv_heads=HEADS,
        head_size=HEAD_SIZE,
        head_size_v=HEAD_SIZE,
        dtype=torch.float32,
        kv_cache=torch.full((NUM_BLOCKS, HEADS, BLOCK_SIZE, 2 * HEAD_SIZE), torch.nan),
    )


def cached(one_layer: Any, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [len(slots), HEADS, HEAD_SIZE]."""
    keys, values = one_layer.kv_cache[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE].split(HEAD_SIZE, dim=-1)
    return keys, values


@dataclass
class World:
    """Sessions, the pool that serves them, and the worker's cache of two layers."""

    bound: Bound
    on_host: bool
    impl: type = Impl
    pool: Pool = field(init=False)
    raw: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = Pool(self.bound, NUM_BLOCKS, MAX_CHUNK)
        self.table = table_for(self.bound, BLOCK_SIZE)
        self.layers = [layer(self.impl()), layer(self.impl())]
        num_slots = MAX_ROWS * self.bound.num_sink_blocks
        cpu = torch.device("cpu")
        anchor = type("Anchor", (SinkAnchor,), {"on_host": self.on_host})
        self.anchor = anchor(self.layers, ROTATION, num_slots, BLOCK_SIZE, MAX_CHUNK, cpu)
        self.random = torch.Generator().manual_seed(0)

    def step_and_check(self, parts: list[tuple[str, int]]) -> None:
        scheduled = []
        for name, num_tokens in parts:
            if num_tokens == 0:
                self.pool.drop(name)
                self.raw.pop(name, None)
            elif self.pool.grow(name, num_tokens):
                self.raw[name] = tuple(
                    torch.cat((known, self.fresh(num_tokens)))
                    for known in self.raw.get(name, (self.fresh(0), self.fresh(0)))
                )
                scheduled.append(name)
        if scheduled:
            self.forward([(name, self.pool.served[name]) for name in scheduled])

    def fresh(self, num_tokens: int) -> torch.Tensor:
        return torch.randn(num_tokens, HEADS, HEAD_SIZE, generator=self.random)

    def forward(self, rows: list[tuple[str, Served]]) -> None:
        full = step_metadata([one for _, one in rows])
        _, gap = compacted(self.table, full)
        self.anchor.begin_step(full.slot_mapping, self.table.sink_rows(full, gap))
        keys, values = (torch.cat([self.raw[name][part][one.start :] for name, one in rows]) for part in (0, 1))
        for number, one_layer in enumerate(self.layers):
            one_layer.impl.do_kv_cache_update(one_layer, keys + number, values + number, None, full.slot_mapping)
        for name, one in rows:
            self.check(name, one)

    def check(self, name: str, one: Served) -> None:
        """What the kernel reads as this session's sinks in this step."""
        held = min(self.bound.num_sink_blocks * BLOCK_SIZE, one.request.num_computed_tokens)
        where = torch.arange(held)
        slots = torch.tensor(one.row)[where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE
        shift = torch.tensor([self.bound.gap_blocks(one.start) * BLOCK_SIZE])
        keys, values = self.raw[name]
        for number, one_layer in enumerate(self.layers):
            raw = keys[None, :held] + number
            expected = ROTATION.turn(raw, *ROTATION.cos_sin(shift))[0]
            found_keys, found_values = cached(one_layer, slots)
            torch.testing.assert_close(found_keys, expected)
            torch.testing.assert_close(found_values, values[:held] + number)


def step_metadata(rows: list[Served]) -> CommonAttentionMetadata:
    chunks = [one.request.num_computed_tokens - one.start for one in rows]
    start = torch.tensor([0, *chunks]).cumsum(0).int()
    seq_lens = torch.tensor([one.request.num_computed_tokens for one in rows], dtype=torch.int32)
    table = torch.zeros(len(rows), 200, dtype=torch.int32)
    slots = []
    for number, one in enumerate(rows):
        table[number, : len(one.row)] = torch.tensor(one.row, dtype=torch.int32)
        where = torch.arange(one.start, one.request.num_computed_tokens)
        slots.append(table[number][where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE)
    return CommonAttentionMetadata(
        query_start_loc=start,
        query_start_loc_cpu=start,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        num_reqs=len(rows),
        num_actual_tokens=int(start[-1]),
        max_query_len=max(chunks),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=table,
        slot_mapping=torch.cat(slots).long(),
    )


@pytest.mark.parametrize("on_host", [True, False], ids=["host", "fixed shapes, as on a GPU"])
@settings(deadline=None, max_examples=40)
@given(bounds, steps)
def test_sinks_are_always_raw_keys_at_the_present_shift(
    on_host: bool, bound: Bound, steps: list[list[tuple[str, int]]]
) -> None:
    world = World(bound, on_host)
    for parts in steps:
        world.step_and_check(parts)


@settings(deadline=None, max_examples=4)
@given(bounds, steps)
def test_the_slide_kernel_needs_raw_keys_alone(bound: Bound, steps: list[list[tuple[str, int]]]) -> None:
    """The same, where sink keys are rotated into the cache by our kernel; values, which do not move, stay."""
    world = World(bound, on_host=False, impl=ImplThatWritesKeysAlone)
    assert all(one.impl._raw_values is None for one in world.layers)
    for parts in steps[:40]:
        world.step_and_check(parts)


def test_raw_keys_take_room_for_sessions_not_for_the_pool() -> None:
    world = World(Bound(window=16, sinks=12, block_size=BLOCK_SIZE), on_host=True)
    for one in world.layers:
        rows = one.impl._raw_keys.shape[0]
        assert rows == MAX_ROWS * 2 * BLOCK_SIZE + 1


def test_a_paused_session_keeps_its_raw_keys_while_others_come_and_go() -> None:
    world = World(Bound(window=16, sinks=8, block_size=BLOCK_SIZE), on_host=True)
    for _ in range(6):
        world.step_and_check([("a", 6)])
    for turn in range(30):
        world.step_and_check([("b", 6), ("c", 5)])
        if turn % 5 == 4:
            world.step_and_check([("b", 0), ("c", 0)])
    for _ in range(6):
        world.step_and_check([("a", 6)])


def test_a_dummy_step_does_not_disturb_live_sinks() -> None:
    world = World(Bound(window=16, sinks=8, block_size=BLOCK_SIZE), on_host=True)
    for _ in range(8):
        world.step_and_check([("a", 6)])
    live = step_metadata([world.pool.served["a"]])
    before = [one.kv_cache.clone() for one in world.layers]
    live.seq_lens = live.seq_lens_cpu_upper_bound = live.seq_lens + 80
    live.slot_mapping.fill_(-1)
    _, gap = compacted(world.table, live)
    world.anchor.begin_step(live.slot_mapping, world.table.sink_rows(live, gap))
    for one, cache in zip(world.layers, before, strict=True):
        torch.testing.assert_close(one.kv_cache, cache, equal_nan=True)
    world.step_and_check([("a", 6)])


@pytest.mark.parametrize("on_host", [True, False])
def test_a_pass_without_metadata_leaves_no_keys_behind(
    on_host: bool, forward_pass: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(Bound(window=16, sinks=8, block_size=BLOCK_SIZE), on_host)
    world.step_and_check([("a", 6)])
    monkeypatch.setattr(forward_pass, "attn_metadata", None)
    noise = world.fresh(3)
    for one in world.layers:
        one.impl.do_kv_cache_update(one, noise, noise, None, torch.full((3,), -1))
    monkeypatch.undo()
    for _ in range(8):
        world.step_and_check([("a", 6)])
