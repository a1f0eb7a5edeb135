"""How the attention kernel is launched: sizes, warps and splits, from shapes alone."""

import functools

import torch
import triton

PROGRAMS_PER_SM = 4  # below it, sessions are split
MAX_SPLITS = 16


def launch_shape(group: int, head_size: int, max_query_len: int) -> dict[str, int]:
    """The kernel's sizes and launch options for `group` query heads a key head. Tensor cores want 16 rows or more."""
    rows = max(16, triton.next_power_of_2(group))
    is_chunk = max_query_len * group > rows
    if is_chunk:
        rows = max(rows, 64)
    is_wide = is_chunk and head_size > 64  # which spills with tiles of 64 or with 4 warps (`resources.py`)
    return {
        "GROUP": group,
        "HEAD_SIZE": head_size,
        "BLOCK_D": triton.next_power_of_2(head_size),
        "BLOCK_M": rows,
        "BLOCK_Q": rows // group,
        "TILE": 32 if head_size > 128 or is_wide else 64,
        "SINK_TILE": 16,
        "num_warps": 8 if is_wide else 4,
        "num_stages": 3 if head_size <= 128 else 2,
    }


def choose_splits(num_programs: int, window: int, tile: int, device: torch.device) -> int:
    """How many programs share a session, a power of two: enough to fill the card, of two tiles or more each.

    From shapes alone, never from lengths: a CUDA graph keeps the number it was captured with.
    """
    wanted = PROGRAMS_PER_SM * _num_sms(device) // max(num_programs, 1)
    useful = min(wanted, window // (2 * tile), MAX_SPLITS)
    return 1 << (useful.bit_length() - 1) if useful > 1 else 1


@functools.cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
