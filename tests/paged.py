"""Paged batches for the kernels, in which whatever no query may see is not a number."""

from dataclasses import dataclass
from typing import Any

import torch
from metronome_kernels import reference
from metronome_kernels.sink_window import sink_window_attention

# The largest (error of the kernel) / (error of the same maths in plain torch, same dtype), by test; printed at the end.
WORST_RATIO: dict[str, float] = {}


@dataclass(frozen=True)
class Paged:
    """A batch as an engine hands it to a kernel, and the bound it is to be read with."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    window: int
    sinks: int

    def tensors(self, dtype: torch.dtype) -> list[torch.Tensor]:
        floats = [x.to(dtype) for x in (self.query, self.key_cache, self.value_cache)]
        return [*floats, self.block_table, self.seq_lens, self.query_start_loc]

    @property
    def bound(self) -> dict[str, Any]:
        return {"window": self.window, "sinks": self.sinks, "scale": self.query.shape[-1] ** -0.5}

    def turn(self, inv_freq: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        if inv_freq is None:
            return None
        position = reference.queries_of(self.query_start_loc, self.seq_lens, len(self.query))
        return reference.cos_sin(reference.gap_of(position, self.window, self.sinks), inv_freq)


def make(
    sessions: list[tuple[int, int]],
    *,
    window: int,
    sinks: int,
    heads: tuple[int, int, int],
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Paged:
    """sessions: (cached tokens, of which queries). heads: (query heads, key heads, head size)."""
    num_heads, num_kv_heads, head_size = heads
    rng = torch.Generator().manual_seed(seed)
    seen = [_seen(cached, queries, window, sinks) for cached, queries in sessions]
    used = [sorted({j // block_size for j in each}) for each in seen]
    num_blocks = 1 + sum(map(len, used))
    # vLLM's layout: keys and values side by side, heads before tokens; the kernel sees strided views.
    cache = torch.full((num_blocks, num_kv_heads, block_size, 2 * head_size), float("nan"), dtype=dtype)
    table = torch.zeros(len(sessions), max(-(-cached // block_size) for cached, _ in sessions) + 1, dtype=torch.int32)
    free = iter((torch.randperm(num_blocks - 1, generator=rng) + 1).tolist())
    for row, (tokens, blocks) in enumerate(zip(seen, used, strict=True)):
        for block in blocks:
            table[row, block] = next(free)
        for j in tokens:
            fresh = torch.randn(num_kv_heads, 2 * head_size, generator=rng)
            cache[table[row, j // block_size], :, j % block_size] = fresh.to(dtype)
    keys, values = cache.transpose(1, 2).split(head_size, dim=-1)
    query = torch.randn(sum(q for _, q in sessions), num_heads, head_size, generator=rng).to(dtype)
    start = torch.tensor([0, *(q for _, q in sessions)]).cumsum(0).int()
    lens = torch.tensor([cached for cached, _ in sessions], dtype=torch.int32)
    return Paged(query, keys, values, table, lens, start, window, sinks)


def _seen(cached: int, queries: int, window: int, sinks: int) -> set[int]:
    """Tokens that at least one query of a session sees."""
    positions = range(cached - queries, cached)
    windows = {j for p in positions for j in range(max(p + 1 - window, 0), p + 1)}
    return windows | set(range(min(sinks, cached)) if positions else ())


def frequencies(num_freq: int) -> torch.Tensor:
    return 10_000.0 ** -(torch.arange(num_freq, dtype=torch.float64) / num_freq)


def run(batch: Paged, **options: Any) -> torch.Tensor:
    """The kernel, into an output that holds no number before."""
    output = torch.full_like(batch.query, float("nan"))
    longest = int((batch.query_start_loc[1:] - batch.query_start_loc[:-1]).max())
    arguments = batch.tensors(batch.query.dtype)
    return sink_window_attention(*arguments, **batch.bound, max_query_len=longest, output=output, **options)


def check(name: str, batch: Paged, inv_freq: torch.Tensor | None = None, is_neox: bool = True, **options: Any) -> float:
    """Hold the kernel to float64: at most twice as wrong as plain torch in its own dtype. Returns the ratio."""
    found = run(batch, turn=batch.turn(inv_freq), is_neox=is_neox, **options)
    rotary = {"inv_freq": inv_freq, "is_neox": is_neox}
    exact = reference.sink_window_attention(*batch.tensors(torch.float64), **batch.bound, **rotary)
    low = reference.sink_window_attention(*batch.tensors(batch.query.dtype), **batch.bound, **rotary)
    error, allowed = ((x.double() - exact).abs().max().item() for x in (found, low))
    assert error <= 2 * allowed, f"{name}: error {error}, twice that of plain torch would be {2 * allowed}"
    ratio = error / allowed if allowed else 0.0
    WORST_RATIO[name] = max(WORST_RATIO.get(name, 0.0), ratio)
    return ratio
