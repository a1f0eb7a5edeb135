"""The slide for stock attention kernels: sink keys, rotated from their raw form into the paged cache, in one launch."""

import torch
import triton
import triton.language as tl

from metronome_kernels.primitives import mend_bfloat16, narrow, pairs


@triton.jit
def rotate_kernel(
    key_cache, raw, source, target, cos, sin,
    num_heads, raw_stride_token, raw_stride_head, stride_block, stride_token, stride_head,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    NUM_FREQ: tl.constexpr, IS_NEOX: tl.constexpr, MEND_BFLOAT16: tl.constexpr,
):  # fmt: skip
    """Grid: tokens, groups of BLOCK_H heads. Token i of a block turns by row i // BLOCK_SIZE of cos and sin."""
    token = tl.program_id(0)
    slot = tl.load(target + token).to(tl.int64)
    if slot < 0:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    held = (head < num_heads)[:, None] & (dim < HEAD_SIZE)[None, :]
    is_first, partner, frequency = pairs(dim, NUM_FREQ, IS_NEOX)
    turns = dim < 2 * NUM_FREQ
    row = raw + tl.load(source + token).to(tl.int64) * raw_stride_token + head[:, None] * raw_stride_head
    key = tl.load(row + dim[None, :], mask=held, other=0.0).to(tl.float32)
    other = tl.load(row + partner[None, :], mask=held & turns[None, :], other=0.0).to(tl.float32)
    angle = (token // BLOCK_SIZE) * NUM_FREQ + frequency
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    key = key * c[None, :] + tl.where(is_first, -1.0, 1.0)[None, :] * other * s[None, :]
    at = key_cache + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_token + head[:, None] * stride_head
    tl.store(at + dim[None, :], narrow(key, key_cache.dtype.element_ty, MEND_BFLOAT16), mask=held)


def rotate_sinks(
    key_cache: torch.Tensor,
    raw: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    is_neox: bool,
) -> None:
    """Write raw keys, each sink block's turned by its angles, into the cache.

    key_cache: [num_blocks, B, H, D], any strides but 1 between dims. raw: [rows, H, D]. source: [K, B] rows of raw.
    target: [K * B] cache slots (block * B + offset), -1 for a token to leave out. cos, sin: [K, F] float32.
    """
    num_heads, head_size = raw.shape[1:]
    block_size = key_cache.shape[1]
    assert key_cache.shape[2:] == raw.shape[1:], "cache and raw keys differ in heads or head size"
    assert source.shape == (len(cos), block_size) and target.numel() == source.numel()
    assert key_cache.stride(-1) == raw.stride(-1) == 1 and source.is_contiguous() and target.is_contiguous()
    assert cos.is_contiguous() and sin.is_contiguous() and cos.shape == sin.shape
    if target.numel() == 0:
        return
    shape = launch_shape(num_heads, head_size)
    rotate_kernel[(target.numel(), triton.cdiv(num_heads, shape["BLOCK_H"]))](
        key_cache, raw, source, target, cos, sin,
        num_heads, *raw.stride()[:2], *key_cache.stride()[:3],
        **shape, BLOCK_SIZE=block_size,
        NUM_FREQ=cos.shape[1], IS_NEOX=is_neox, MEND_BFLOAT16=mend_bfloat16(rotate_kernel, raw.dtype),
    )  # fmt: skip


def launch_shape(num_heads: int, head_size: int) -> dict[str, int]:
    """The kernel's sizes and launch options."""
    rows = min(triton.next_power_of_2(num_heads), 8)
    return {"HEAD_SIZE": head_size, "BLOCK_D": triton.next_power_of_2(head_size), "BLOCK_H": rows, "num_warps": 4}
