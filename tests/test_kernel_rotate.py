"""The slide kernel in Triton's interpreter: rotated sinks in the cache, and nothing else touched."""

from dataclasses import replace

import paged
import pytest
import torch
from metronome_kernels import reference
from metronome_kernels.rotate_sinks import rotate_sinks

SHIFT = torch.tensor([0, 32, 100_000])


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("heads", [(3, 64), (1, 80), (9, 128), (2, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_kernel_rotates_into_the_cache(dtype, heads, is_neox):
    num_heads, head_size = heads
    rng = torch.Generator().manual_seed(1)
    cache = torch.randn(6, num_heads, 16, 2 * head_size, generator=rng).to(dtype)
    raw = torch.randn(64, num_heads, head_size, generator=rng).to(dtype)
    source = torch.arange(48).view(3, 16).flip(0).contiguous()
    target = torch.arange(16, 64).roll(5)
    target[7] = -1
    cos, sin = reference.cos_sin(SHIFT, paged.frequencies(head_size // 4))

    before, wanted = cache.clone(), cache.clone().double()
    turned = reference.rotate(
        raw[source].double(), cos[:, None, None].double(), sin[:, None, None].double(), is_neox
    ).flatten(0, 1)
    for token, slot in enumerate(target.tolist()):
        if slot >= 0:
            wanted[slot // 16, :, slot % 16, :head_size] = turned[token]
    rotate_sinks(cache.transpose(1, 2)[..., :head_size], raw, source, target, cos, sin, is_neox)

    error = (cache.double() - wanted).abs().max().item()
    low = reference.rotate(raw[source], cos[:, None, None], sin[:, None, None], is_neox).flatten(0, 1)
    allowed = (low.double() - turned).abs().max().item()
    assert error <= 2 * allowed
    paged.WORST_RATIO["rotate"] = max(paged.WORST_RATIO.get("rotate", 0.0), error / allowed)
    assert torch.equal(cache[..., head_size:], before[..., head_size:])  # values stay
    assert torch.equal(cache[4:], before[4:]) and torch.equal(cache[0], before[0])  # and blocks that hold no sink


def test_kernel_rotates_nothing_when_nothing_moves():
    nothing = torch.zeros(0, 16, dtype=torch.int64)
    cos, sin = reference.cos_sin(torch.zeros(0), paged.frequencies(32))
    cache = torch.zeros(2, 16, 1, 64)
    rotate_sinks(cache, torch.ones(4, 1, 64), nothing, nothing.flatten(), cos, sin, True)
    assert not cache.any()


def test_kernel_that_turns_queries_equals_one_that_reads_rotated_sinks():
    """The two ways of moving sinks, one against the other, in float32."""
    batch = paged.make([(300, 1)], window=40, sinks=16, heads=(4, 2, 64), dtype=torch.float32)
    inv_freq = paged.frequencies(32)
    turned = paged.run(batch, turn=batch.turn(inv_freq))

    cache = torch.cat((batch.key_cache, batch.value_cache), dim=-1)
    sink_block = int(batch.block_table[0, 0])
    gap = torch.tensor([300 - 40 - 16])
    source, target = torch.arange(16)[None], sink_block * 16 + torch.arange(16)
    rotate_sinks(
        cache[..., :64],
        batch.key_cache[sink_block].contiguous(),
        source,
        target,
        *reference.cos_sin(gap, inv_freq),
        True,
    )
    moved = replace(batch, key_cache=cache[..., :64], value_cache=cache[..., 64:])
    assert (paged.run(moved) - turned).abs().max() < 1e-6
