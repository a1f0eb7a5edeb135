"""Compile every kernel for GPUs that need not be there, and say what it takes of them.

    python -m metronome_kernels.resources [--arch 90]

Registers and stack are read from the compiled code by NVIDIA's `cuobjdump`, which Triton brings. Registers that do not
fit spill to the stack: a stack of 0 bytes is a kernel without spills. Shared memory is what a launch asks for.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from metronome_kernels.launch import launch_shape
from metronome_kernels.rotate_sinks import launch_shape as rotate_shape
from metronome_kernels.rotate_sinks import rotate_kernel
from metronome_kernels.shapes import HEAD_SHAPES, HeadShape
from metronome_kernels.sink_window import attention_kernel, join_kernel

ARCHITECTURES = (90, 100, 120)
# Shared memory that one block of threads can have, in bytes, by architecture (CUDA programming guide, opt-in limit).
SHARED_LIMIT = {90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
_OPTIONS = ("num_warps", "num_stages")
_LONG_CHUNK = 256  # any query length that takes the kernel's form for chunks
_TYPES = {"block_table": "*i32", "seq_lens": "*i32", "query_start_loc": "*i32", "source": "*i64", "target": "*i64"}
_FLOATS = {"partial", "partial_lse", "cos", "sin"}
_CACHES = {"output", "query", "key_cache", "value_cache", "raw"}


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel: `sizes` are its compile-time arguments and launch options."""

    kernel: str
    form: str
    shape: str
    sizes: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Resources:
    """What one launch takes: registers a thread, bytes of stack a thread, bytes of shared memory a block."""

    variant: Variant
    arch: int
    registers: int
    stack: int
    shared: int


def variants(dtype: str = "bf16") -> Iterator[Variant]:
    """Every kernel in every form that a launch can choose, for each head shape."""
    for name, shape in HEAD_SHAPES.items():
        common = {"BLOCK_SIZE": 16, "NUM_FREQ": shape.head_size // 2, "IS_NEOX": True, "MEND_BFLOAT16": False}
        decode = launch_shape(shape.group, shape.head_size, 1) | common | {"IS_DECODE": True}
        chunk = launch_shape(shape.group, shape.head_size, _LONG_CHUNK) | common | {"IS_DECODE": False}
        yield _variant("attention", "decode", name, decode | {"NUM_SPLITS": 1})
        yield _variant("attention", "decode, split", name, decode | {"NUM_SPLITS": 4})
        yield _variant("attention", "chunk", name, chunk | {"NUM_SPLITS": 1})
        join = {key: decode[key] for key in ("HEAD_SIZE", "BLOCK_D", "MEND_BFLOAT16")}
        yield _variant("join", "16 splits", name, join | {"NUM_SPLITS": 16})
        yield _variant("rotate", "", name, rotate_shape(shape.num_kv_heads, shape.head_size) | common)


def _variant(kernel: str, form: str, shape: str, sizes: dict[str, Any]) -> Variant:
    return Variant(kernel, form, shape, tuple(sorted(sizes.items())))


def compile_variant(variant: Variant, arch: int) -> Resources:
    """RuntimeError where the kernel does not compile."""
    kernel = {"attention": attention_kernel, "join": join_kernel, "rotate": rotate_kernel}[variant.kernel]
    sizes = dict(variant.sizes)
    options = {key: sizes.pop(key) for key in _OPTIONS if key in sizes}
    signature = {name: _type_of(name, sizes) for name in kernel.arg_names}
    aligned = [i for i, (name, kind) in enumerate(signature.items()) if kind.startswith("*") or "stride" in name]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in sizes.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(variant, arch, registers, stack, compiled.metadata.shared)


def _type_of(name: str, sizes: dict[str, Any]) -> str:
    if name in sizes:
        return "constexpr"
    if name in _FLOATS:
        return "*fp32"
    if name in _CACHES:
        return "*bf16"
    return _TYPES.get(name, "fp32" if name == "scale_log2" else "i32")


def _usage(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, f"cuobjdump names no registers: {said}"
    return int(found[1]), int(found[2])


def compile_all(architectures: Iterable[int] = ARCHITECTURES) -> list[Resources]:
    """Every variant for every architecture, on as many processes as there are cores."""
    jobs = [(variant, arch) for arch in architectures for variant in variants()]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(compile_variant, *zip(*jobs, strict=True)))


def table(results: list[Resources]) -> str:
    """One line a kernel and head shape; a cell for each architecture says registers / stack / KiB of shared memory."""
    architectures = sorted({r.arch for r in results})
    cells = {(r.variant, r.arch): f"{r.registers} / {r.stack} / {r.shared / 1024:.1f}" for r in results}
    heads = [f"sm_{arch}" for arch in architectures]
    lines = ["| kernel | head shape | heads / kv / size | " + " | ".join(heads) + " |"]
    lines.append("| --- " * (3 + len(heads)) + "|")
    for variant in dict.fromkeys(r.variant for r in results):
        shape = HEAD_SHAPES[variant.shape]
        name = f"{variant.kernel} {variant.form}".strip()
        found = " | ".join(cells[variant, arch] for arch in architectures)
        lines.append(f"| {name} | {variant.shape} | {_heads(shape)} | {found} |")
    return "\n".join(lines)


def _heads(shape: HeadShape) -> str:
    return f"{shape.num_heads} / {shape.num_kv_heads} / {shape.head_size}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile every kernel, and print registers / stack / shared memory.")
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    results = compile_all(parser.parse_args().arch)
    print(table(results))
    bad = [r for r in results if r.stack > 0 or r.shared > SHARED_LIMIT[r.arch]]
    for each in bad:
        print(f"spills or does not fit: {each}", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
