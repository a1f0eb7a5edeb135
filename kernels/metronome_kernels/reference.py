"""What the kernels compute, in plain torch: readable, slow, and in whatever precision it is given.

A session of n cached tokens has positions 0 .. n - 1. The query at position p sees a key at position j where

    j <= p  and  (j < sinks  or  j > p - window)

and where sinks move, it sees each sink `gap = max(p + 1 - window - sinks, 0)` positions nearer: right before its
window. Keys are cached as the model rotated them, so a sink moves by being rotated forward by its gap.
"""

import torch


def queries_of(query_start_loc: torch.Tensor, seq_lens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Position of each query in its session, [num_tokens]; -1 for the padding behind the last session's queries.

    query_start_loc: [N + 1], where each session's queries begin. seq_lens: [N], cached tokens, the queries included.
    """
    token = torch.arange(num_tokens, device=seq_lens.device)
    session = torch.searchsorted(query_start_loc[1:].contiguous(), token, right=True)
    held = session.clamp(max=seq_lens.numel() - 1)
    position = seq_lens[held] - query_start_loc[held + 1] + token
    return torch.where(session < seq_lens.numel(), position, -1).long()


def gap_of(position: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """Tokens missing between the sinks and the window of the query at each position, same shape."""
    return (position + 1 - window - sinks).clamp(min=0)


def cos_sin(shift: torch.Tensor, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """shift: [K] positions, inv_freq: [F] rad a position -> two [K, F] float32.

    In float64 first: past 100,000 positions a float32 angle is wrong by more than bfloat16 rounds.
    """
    angle = shift.to(torch.float64)[:, None] * inv_freq.to(torch.float64)
    return angle.cos().float(), angle.sin().float()


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """Turn the first 2F dims of keys [..., D] forward by cos, sin [..., F]; in float32 or better, same dtype out.

    Pairs are (d, d + F) in the style of NeoX and (2d, 2d + 1) in that of GPT-J.
    """
    num_rotated = 2 * cos.shape[-1]
    precise = torch.promote_types(keys.dtype, torch.float32)
    rotated, rest = keys[..., :num_rotated].to(precise), keys[..., num_rotated:]
    first, second = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((joined.to(keys.dtype), rest), dim=-1)


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
    inv_freq: torch.Tensor | None = None,
    is_neox: bool = True,
) -> torch.Tensor:
    """As `sink_window.sink_window_attention`, from frequencies; a query that sees nothing gets zeros."""
    output = torch.zeros_like(query)
    position = queries_of(query_start_loc, seq_lens, len(query))
    for session, blocks in enumerate(block_table):
        for token in range(int(query_start_loc[session]), int(query_start_loc[session + 1])):
            p = int(position[token])
            kept = [*range(min(sinks, p + 1)), *range(max(sinks, p + 1 - window, 0), p + 1)]
            if not kept:
                continue
            keys, values = (gather(cache, blocks, kept) for cache in (key_cache, value_cache))
            if inv_freq is not None:
                gap = gap_of(position[token : token + 1], window, sinks)
                cos, sin = (x.to(torch.promote_types(keys.dtype, torch.float32)) for x in cos_sin(gap, inv_freq))
                keys = torch.cat((rotate(keys[:sinks], cos, sin, is_neox), keys[sinks:]))
            output[token] = _attend(query[token], keys, values, scale)
    return output


def gather(cache: torch.Tensor, blocks: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Rows of a session at `positions`: cache [num_blocks, B, H, D], blocks [M] -> [len(positions), H, D]."""
    where = torch.tensor(positions, device=cache.device)
    block_size = cache.shape[1]
    return cache[blocks[where // block_size].long(), where % block_size]


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """query: [Hq, D], keys and values: [J, Hkv, D] -> [Hq, D]."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    scores = (keys @ query[:, :, None]).squeeze(-1) * scale
    return (scores.softmax(dim=-1)[:, None] @ values).squeeze(1)
