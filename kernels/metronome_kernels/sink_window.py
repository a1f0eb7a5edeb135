"""Paged attention over [first `sinks` tokens | last `window` tokens] of each session, exact to the token.

One program computes a few queries of one session, for the query heads that share one key head, over its share of what
they see; where sessions are few, several programs split a session's tokens and a second pass joins them. Block tables
are the engine's own: what lies between sinks and window is never read, whatever its entries say.

Sinks move with the window by turning the *query* back by its gap, once per program, rather than each sink key forward:
the same product, q R(gap) k, without a write to the cache or a raw copy of the sinks.
"""

import torch
import triton
import triton.language as tl

from metronome_kernels.launch import choose_splits, launch_shape
from metronome_kernels.primitives import dot, mend_bfloat16, narrow, pairs

LOG2_E = 1.4426950408889634


@triton.jit
def _session_of(query_start_loc, block, num_sessions, BLOCK_Q: tl.constexpr):
    """The session that owns a block of queries: the last whose first block is not behind it.

    Session s begins at block query_start_loc[s] // BLOCK_Q + s, which leaves each session room for its last,
    partly filled block.
    """
    low = block * 0
    high = low + num_sessions
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _fold(
    acc, row_max, row_sum, query, position, end, first_seen, last_seen,
    # Cache of this session and head
    keys, values, blocks, key_stride_block, key_stride_token, value_stride_block, value_stride_token,
    scale_log2, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, MEND_BFLOAT16: tl.constexpr,
):  # fmt: skip
    """Fold the keys at `position` [T], those before `end`, into the running softmax of [M] rows."""
    held = position < end
    block = tl.load(blocks + position // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
    slot = position % BLOCK_SIZE
    dim = tl.arange(0, BLOCK_D)
    key_at = keys + (block * key_stride_block + slot * key_stride_token)[None, :] + dim[:, None]
    value_at = values + (block * value_stride_block + slot * value_stride_token)[:, None] + dim[None, :]
    key = tl.load(key_at, mask=held[None, :] & (dim < HEAD_SIZE)[:, None], other=0.0)
    value = tl.load(value_at, mask=held[:, None] & (dim < HEAD_SIZE)[None, :], other=0.0)

    seen = held[None, :] & (position[None, :] >= first_seen[:, None]) & (position[None, :] <= last_seen[:, None])
    score = tl.zeros([query.shape[0], key.shape[1]], dtype=tl.float32)
    score = tl.where(seen, dot(query, key, score, MEND_BFLOAT16) * scale_log2, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(score, 1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen nothing yet
    weight = tl.exp2(score - base[:, None])
    decay = tl.exp2(row_max - base)
    row_sum = row_sum * decay + tl.sum(weight, 1)
    acc = dot(narrow(weight, value.dtype, MEND_BFLOAT16), value, acc * decay[:, None], MEND_BFLOAT16)
    return acc, new_max, row_sum


@triton.jit
def _turned_back(
    query, query_at, dim, row_held, cos, sin,
    NUM_FREQ: tl.constexpr, IS_NEOX: tl.constexpr, MEND_BFLOAT16: tl.constexpr,
):  # fmt: skip
    """query [M, D], each row turned back by the angles of its cos and sin rows; `query_at` points to its elements."""
    is_first, partner, frequency = pairs(dim, NUM_FREQ, IS_NEOX)
    turns = row_held[:, None] & (dim < 2 * NUM_FREQ)[None, :]
    other = tl.load(query_at + (partner - dim)[None, :], mask=turns, other=0.0).to(tl.float32)
    c = tl.load(cos[:, None] + frequency[None, :], mask=turns, other=1.0)
    s = tl.load(sin[:, None] + frequency[None, :], mask=turns, other=0.0)
    turned = query.to(tl.float32) * c + tl.where(is_first, 1.0, -1.0)[None, :] * other * s
    return narrow(turned, query.dtype, MEND_BFLOAT16)


@triton.jit(do_not_specialize=["num_sessions"])
def attention_kernel(
    # Pointers
    output, partial, partial_lse, query, key_cache, value_cache, block_table, seq_lens, query_start_loc, cos, sin,
    # Sizes
    num_sessions, window, sinks, scale_log2,
    # Strides
    output_stride_token, output_stride_head, query_stride_token, query_stride_head,
    key_stride_block, key_stride_token, key_stride_head, value_stride_block, value_stride_token, value_stride_head,
    table_stride,
    # Meta-parameters
    GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SINK_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr, NUM_FREQ: tl.constexpr, IS_NEOX: tl.constexpr, IS_DECODE: tl.constexpr,
    MEND_BFLOAT16: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_Q queries, key heads, splits. A row of [BLOCK_M] is one query in one of GROUP heads."""
    block, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_DECODE:
        session, first_query = block, 0
    else:
        session = _session_of(query_start_loc, block, num_sessions, BLOCK_Q)
        first_query = (block - (tl.load(query_start_loc + session) // BLOCK_Q + session)) * BLOCK_Q
    start = tl.load(query_start_loc + session)
    num_queries = tl.load(query_start_loc + session + 1) - start
    if first_query >= num_queries:
        return
    num_cached = tl.load(seq_lens + session)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    query_index = first_query + row // GROUP
    row_held = (row < BLOCK_Q * GROUP) & (query_index < num_queries)
    token = (start + query_index).to(tl.int64)
    query_head = head * GROUP + row % GROUP
    position = num_cached - num_queries + query_index
    query_at = query + (token * query_stride_token + query_head * query_stride_head)[:, None] + dim[None, :]
    q = tl.load(query_at, mask=row_held[:, None] & (dim < HEAD_SIZE)[None, :], other=0.0)

    # What the block's queries see: tokens [0, sinks_end) and [window_start, end).
    first_position = num_cached - num_queries + first_query
    end = num_cached - num_queries + tl.minimum(first_query + BLOCK_Q, num_queries)
    sinks_end = tl.minimum(sinks, end)
    window_start = tl.maximum(sinks, first_position + 1 - window)
    num_recent = tl.where(window > 0, tl.maximum(end - window_start, 0), 0)
    share = tl.cdiv(tl.cdiv(num_recent, TILE), NUM_SPLITS) * TILE
    window_start += split * share
    window_end = tl.minimum(end, window_start + share)

    keys = key_cache + head * key_stride_head
    values = value_cache + head * value_stride_head
    blocks = block_table + session.to(tl.int64) * table_stride
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    if split == 0:
        sink_q = q
        if NUM_FREQ > 0:
            sink_q = _turned_back(
                q, query_at, dim, row_held, cos + token * NUM_FREQ, sin + token * NUM_FREQ,
                NUM_FREQ, IS_NEOX, MEND_BFLOAT16,
            )  # fmt: skip
        for first in range(0, sinks_end, SINK_TILE):
            acc, row_max, row_sum = _fold(
                acc, row_max, row_sum, sink_q, first + tl.arange(0, SINK_TILE), sinks_end, position * 0, position,
                keys, values, blocks, key_stride_block, key_stride_token, value_stride_block, value_stride_token,
                scale_log2, BLOCK_SIZE, HEAD_SIZE, BLOCK_D, MEND_BFLOAT16,
            )  # fmt: skip
    for first in range(window_start, window_end, TILE):
        acc, row_max, row_sum = _fold(
            acc, row_max, row_sum, q, first + tl.arange(0, TILE), window_end, position + 1 - window, position,
            keys, values, blocks, key_stride_block, key_stride_token, value_stride_block, value_stride_token,
            scale_log2, BLOCK_SIZE, HEAD_SIZE, BLOCK_D, MEND_BFLOAT16,
        )  # fmt: skip

    result = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    held = row_held[:, None] & (dim < HEAD_SIZE)[None, :]
    if NUM_SPLITS == 1:
        at = output + (token * output_stride_token + query_head * output_stride_head)[:, None] + dim[None, :]
        tl.store(at, narrow(result, output.dtype.element_ty, MEND_BFLOAT16), mask=held)
    else:
        # partial: [tokens, heads, splits, D], partial_lse: [tokens, heads, splits]
        part = (token * (tl.num_programs(1) * GROUP) + query_head) * NUM_SPLITS + split
        lse = tl.where(row_sum > 0, row_max + tl.log2(tl.where(row_sum > 0, row_sum, 1.0)), float("-inf"))
        tl.store(partial + part[:, None] * HEAD_SIZE + dim[None, :], result, mask=held)
        tl.store(partial_lse + part, lse, mask=row_held)


@triton.jit(do_not_specialize=["num_sessions"])
def join_kernel(
    output, partial, partial_lse, query_start_loc, num_sessions, output_stride_token, output_stride_head,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, NUM_SPLITS: tl.constexpr, MEND_BFLOAT16: tl.constexpr,
):  # fmt: skip
    """Grid: tokens, query heads. Weigh what the splits found by the sums they found it with."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(query_start_loc + num_sessions):
        return  # padding, for which nothing was found
    split, dim = tl.arange(0, NUM_SPLITS), tl.arange(0, BLOCK_D)
    part = (token * tl.num_programs(1) + head) * NUM_SPLITS + split
    lse = tl.load(partial_lse + part)
    most = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(most == float("-inf"), 0.0, most))
    found = tl.load(partial + part[:, None] * HEAD_SIZE + dim[None, :], mask=(dim < HEAD_SIZE)[None, :], other=0.0)
    total = tl.sum(weight, 0)
    result = tl.sum(found * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    at = output + token * output_stride_token + head * output_stride_head + dim
    tl.store(at, narrow(result, output.dtype.element_ty, MEND_BFLOAT16), mask=dim < HEAD_SIZE)


def sink_window_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    window: int,
    sinks: int,
    scale: float,
    max_query_len: int,
    turn: tuple[torch.Tensor, torch.Tensor] | None = None,
    is_neox: bool = True,
    num_splits: int | None = None,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each query to its session's first `sinks` and its own last `window` tokens.

    query: [T, Hq, D], float32 accumulation whatever its dtype. key_cache, value_cache: [num_blocks, B, Hkv, D] views of
    any strides but 1 between dims. block_table: [N, M] int32. seq_lens: [N] int32, cached tokens with the queries.
    query_start_loc: [N + 1] int32. max_query_len: 1 takes every session to have one query at most.
    turn: cos and sin [T, F] float32 of the angles by which each query's sinks move nearer (`reference.cos_sin` of
    `reference.gap_of`); None leaves them where they are. num_splits: programs that share a session; None chooses.
    Returns output, [T, Hq, D]; rows behind query_start_loc[-1] are left as they are.
    """
    _check(query, key_cache, value_cache, block_table, query_start_loc, turn)
    num_tokens, num_heads, head_size = query.shape
    num_sessions, num_key_heads = len(seq_lens), key_cache.shape[2]
    output = torch.empty_like(query) if output is None else output
    shape = launch_shape(num_heads // num_key_heads, head_size, max_query_len)
    is_decode = max_query_len == 1
    num_blocks = num_sessions if is_decode else num_tokens // shape["BLOCK_Q"] + num_sessions
    if num_splits is None:
        programs = num_blocks * num_key_heads
        num_splits = choose_splits(programs, window, shape["TILE"], query.device) if is_decode else 1
    partial = partial_lse = output  # unused by a single split
    if num_splits > 1:
        partial = query.new_empty((num_tokens, num_heads, num_splits, head_size), dtype=torch.float32)
        partial_lse = query.new_empty((num_tokens, num_heads, num_splits), dtype=torch.float32)
    cos, sin = (output, output) if turn is None else turn
    attention_kernel[(num_blocks, num_key_heads, num_splits)](
        output, partial, partial_lse, query, key_cache, value_cache, block_table, seq_lens, query_start_loc, cos, sin,
        num_sessions, window, sinks, scale * LOG2_E,
        *output.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        **shape, BLOCK_SIZE=key_cache.shape[1], NUM_SPLITS=num_splits, IS_DECODE=is_decode,
        NUM_FREQ=0 if turn is None else cos.shape[1], IS_NEOX=is_neox,
        MEND_BFLOAT16=mend_bfloat16(attention_kernel, query.dtype),
    )  # fmt: skip
    if num_splits > 1:
        join_kernel[(num_tokens, num_heads)](
            output, partial, partial_lse, query_start_loc, num_sessions, *output.stride()[:2],
            HEAD_SIZE=head_size, BLOCK_D=shape["BLOCK_D"], NUM_SPLITS=num_splits,
            MEND_BFLOAT16=mend_bfloat16(join_kernel, query.dtype),
        )  # fmt: skip
    return output


def _check(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    num_tokens, num_heads, head_size = query.shape
    assert key_cache.shape == value_cache.shape and key_cache.shape[3] == head_size, "head sizes differ"
    assert num_heads % key_cache.shape[2] == 0, "query heads must be a multiple of key heads"
    assert all(x.stride(-1) == 1 for x in (query, key_cache, value_cache, block_table)), "last dims must be contiguous"
    assert query.dtype == key_cache.dtype == value_cache.dtype, "query and cache must have one dtype"
    assert len(query_start_loc) == len(block_table) + 1, "query_start_loc has one entry more than sessions"
    if turn is not None:
        cos, sin = turn
        assert cos.shape == sin.shape and len(cos) >= num_tokens, "cos and sin need a row for each query"
        assert cos.is_contiguous() and sin.is_contiguous() and 2 * cos.shape[1] <= head_size
        assert cos.dtype == sin.dtype == torch.float32
