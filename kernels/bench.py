"""Time the decode kernel against what else one could call, on a CUDA GPU; first hold all of them to float64.

    python kernels/bench.py [--out kernels/results] [--sessions 32 209 512] [--windows 512 2048]

Without a GPU it runs the numerics (the kernel in Triton's interpreter), says so, and exits 0. With one it writes a CSV
with the card's name: microseconds (median), GB/s, and the share of the bandwidth that a plain copy reaches on the card.

What is compared: our kernel on the engine's full block table, sinks turned; vLLM's Triton attention on the block table
that the plugin compacts, sinks rotated beforehand; torch's SDPA and FlexAttention on keys gathered beforehand, neither
of whose gathering is timed.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read as Triton is imported

import triton
from metronome_kernels import reference
from metronome_kernels.shapes import HEAD_SHAPES, OMNI_MODELS, HeadShape
from metronome_kernels.sink_window import sink_window_attention
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

SINKS, BLOCK_SIZE, SLID = 4, 16, 4096  # tokens of a session that have left its window
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Result:
    card: str
    model: str
    num_sessions: int
    window: int
    provider: str
    microseconds: float
    gigabytes_per_s: float
    share_of_copy: float


class Decode:
    """One step of N sessions with one query each, past their windows; every provider's inputs laid out beforehand."""

    def __init__(self, shape: HeadShape, num_sessions: int, window: int, device: str) -> None:
        self.shape, self.window = shape, window
        self.scale = shape.head_size**-0.5
        self.num_tokens = SLID + window  # in each session
        self.kept = torch.tensor([*range(SINKS), *range(self.num_tokens - window, self.num_tokens)], device=device)
        blocks = torch.unique(self.kept // BLOCK_SIZE)
        num_blocks = 1 + num_sessions * len(blocks)
        size = (num_blocks, shape.num_kv_heads, BLOCK_SIZE, 2 * shape.head_size)
        self.cache = torch.randn(size, device=device, dtype=torch.bfloat16)  # vLLM's layout
        self.query = torch.randn((num_sessions, shape.num_heads, shape.head_size), device=device, dtype=torch.bfloat16)
        mine = 1 + torch.randperm(num_blocks - 1, device=device).int().view(num_sessions, -1)
        width = -(-self.num_tokens // BLOCK_SIZE)
        self.table = torch.zeros((num_sessions, width), device=device, dtype=torch.int32)
        self.table[:, blocks] = mine
        self.compact = mine.contiguous()
        self.start = torch.arange(num_sessions + 1, device=device, dtype=torch.int32)
        self.lens = torch.full((num_sessions,), self.num_tokens, device=device, dtype=torch.int32)
        self.inv_freq = 10_000.0 ** -(torch.arange(shape.head_size // 2, device=device).double() / shape.head_size * 2)
        position = reference.queries_of(self.start, self.lens, num_sessions)
        self.turn = reference.cos_sin(reference.gap_of(position, window, SINKS), self.inv_freq)

    @property
    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        by_token = self.cache.transpose(1, 2)
        return by_token[..., : self.shape.head_size], by_token[..., self.shape.head_size :]

    @property
    def num_bytes(self) -> int:
        """Keys and values (2) of sinks and window, read once in 2 bytes each; queries read and outputs written."""
        read = 2 * len(self.query) * len(self.kept) * self.shape.num_kv_heads * self.shape.head_size
        return 2 * (read + 2 * self.query.numel())

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Kept keys, sinks rotated, and values: [N, Hkv, J, D]."""
        rows = self.table[:, self.kept // BLOCK_SIZE].long(), (self.kept % BLOCK_SIZE).expand(len(self.table), -1)
        keys, values = (cache[rows] for cache in self.caches)
        cos, sin = (x[:, None, None] for x in self.turn)
        keys[:, :SINKS] = reference.rotate(keys[:, :SINKS], cos, sin, is_neox=True)
        return keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()

    def attend(self, dtype: torch.dtype) -> torch.Tensor:
        """In plain torch."""
        floats = (x.to(dtype) for x in (self.query, *self.caches))
        arguments = (*floats, self.table, self.lens, self.start)
        bound = {"window": self.window, "sinks": SINKS, "scale": self.scale}
        return reference.sink_window_attention(*arguments, **bound, inv_freq=self.inv_freq)


def metronome(step: Decode) -> Call:
    arguments = (step.query, *step.caches, step.table, step.lens, step.start)
    bound = {"window": step.window, "sinks": SINKS, "scale": step.scale}
    return lambda: sink_window_attention(*arguments, **bound, max_query_len=1, turn=step.turn)


def sdpa(step: Decode) -> Call:
    keys, values = step.gathered()
    query = step.query[:, :, None]
    options = {"scale": step.scale, "enable_gqa": True}
    return lambda: scaled_dot_product_attention(query, keys, values, **options)[:, :, 0]


def flex(step: Decode) -> Call:
    keys, values = step.gathered()
    query = step.query[:, :, None]
    attend = torch.compile(flex_attention, dynamic=False) if query.is_cuda else flex_attention
    options = {"scale": step.scale, "enable_gqa": True}
    return lambda: attend(query, keys, values, **options)[:, :, 0]


def vllm_triton(step: Decode) -> Call:
    """Sinks left as they are: rotating them beforehand would change what is timed in nothing."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    output, num_seqs, segments = torch.empty_like(step.query), len(step.query), 16
    size = (num_seqs, step.shape.num_heads, segments)
    scratch = [
        torch.empty((*size, triton.next_power_of_2(step.shape.head_size)), device="cuda"),
        torch.empty(size, device="cuda"),
        torch.empty(size, device="cuda"),
    ]
    held = step.num_tokens - (step.table.shape[1] - step.compact.shape[1]) * BLOCK_SIZE
    lens = torch.full_like(step.lens, held)

    def attend() -> torch.Tensor:
        unified_attention(
            q=step.query,
            k=step.caches[0],
            v=step.caches[1],
            out=output,
            cu_seqlens_q=step.start,
            max_seqlen_q=1,
            seqused_k=lens,
            max_seqlen_k=held,
            softmax_scale=step.scale,
            causal=True,
            window_size=(-1, -1),
            block_table=step.compact,
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            seq_threshold_3D=128 // step.shape.num_kv_heads,
            num_par_softmax_segments=segments,
            softmax_segm_output=scratch[0],
            softmax_segm_max=scratch[1],
            softmax_segm_expsum=scratch[2],
        )
        return output

    return attend


PROVIDERS: dict[str, Callable[[Decode], Call]] = {"metronome": metronome, "sdpa": sdpa, "flex": flex}
GPU_PROVIDERS = PROVIDERS | {"vllm_triton": vllm_triton}


def numerics(device: str) -> bool:
    """Print each provider's largest error; whether all are at most twice as wrong as plain torch in bfloat16."""
    step = Decode(HEAD_SHAPES["qwen2_5_omni"], num_sessions=2, window=96, device=device)
    exact = step.attend(torch.float64)
    allowed = 2 * (step.attend(torch.bfloat16).double() - exact).abs().max().item()
    errors = {name: (provider(step)().double() - exact).abs().max().item() for name, provider in PROVIDERS.items()}
    for name, error in errors.items():
        print(f"numerics: {name:10} max |error| {error:.1e}, allowed {allowed:.1e}")
    return max(errors.values()) <= allowed


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a plain copy on this card."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    milliseconds = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return float(2 * source.numel() / milliseconds * 1e3)


def measure(sessions: list[int], windows: list[int]) -> Iterator[Result]:
    card, copied = torch.cuda.get_device_name(), copy_bandwidth()
    print(f"{card}: a plain copy moves {copied / 1e9:.0f} GB/s")
    for model in OMNI_MODELS:
        for window in windows:
            for num_sessions in sessions:
                step = Decode(HEAD_SHAPES[model], num_sessions, window, "cuda")
                for name, provider in GPU_PROVIDERS.items():
                    try:
                        milliseconds = triton.testing.do_bench(provider(step), return_mode="median")
                    except (ImportError, torch.cuda.OutOfMemoryError) as error:
                        print(f"{model} N={num_sessions} W={window}: {name} left out: {error}", file=sys.stderr)
                        continue
                    speed = step.num_bytes / milliseconds * 1e3
                    yield Result(
                        card, model, num_sessions, window, name, milliseconds * 1e3, speed / 1e9, speed / copied
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode attention: numerics, then microseconds and GB/s on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("kernels/results"), help="folder for the CSV")
    parser.add_argument("--sessions", type=int, nargs="+", default=[32, 209, 512])
    parser.add_argument("--windows", type=int, nargs="+", default=[512, 2048])
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if not numerics("cuda" if torch.cuda.is_available() else "cpu"):
        return 1
    if not torch.cuda.is_available():
        print("no CUDA GPU here: numerics only, nothing was timed")
        return 0
    results = []
    for result in measure(arguments.sessions, arguments.windows):
        results.append(asdict(result))
        print("{model:15} N={num_sessions:<4} W={window:<5} {provider:12} {microseconds:8.1f} us  "
              "{gigabytes_per_s:6.0f} GB/s  {share_of_copy:5.1%} of a copy".format(**results[-1]))  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{torch.cuda.get_device_name().replace(' ', '_')}.csv"
    pd.DataFrame(results).round(4).to_csv(path, index=False)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
