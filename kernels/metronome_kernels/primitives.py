"""What the kernels share, written so that Triton's interpreter computes what a GPU does.

The interpreter keeps bfloat16 as integers: it multiplies those, and cuts where hardware rounds. MEND_BFLOAT16 says so.
"""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, MEND_BFLOAT16: tl.constexpr):
    """a @ b + acc, in float32 where bfloat16 must be mended: the products are the same."""
    if MEND_BFLOAT16:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc=acc, input_precision="ieee")


@triton.jit
def narrow(x, dtype: tl.constexpr, MEND_BFLOAT16: tl.constexpr):
    """float32 x to dtype, rounded to nearest, ties to even."""
    if MEND_BFLOAT16:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def pairs(dim, NUM_FREQ: tl.constexpr, IS_NEOX: tl.constexpr):
    """For each dim: whether it is the first of its rotary pair, the other dim, and the pair's frequency."""
    if IS_NEOX:
        is_first = dim < NUM_FREQ
        partner = tl.where(is_first, dim + NUM_FREQ, dim - NUM_FREQ)
        frequency = dim % NUM_FREQ
    else:
        is_first = dim % 2 == 0
        partner = tl.where(is_first, dim + 1, dim - 1)
        frequency = dim // 2
    return is_first, partner, frequency


def mend_bfloat16(kernel: object, dtype: object) -> bool:
    """Whether `kernel` runs in the interpreter, which mistreats this torch dtype."""
    return not isinstance(kernel, triton.JITFunction) and str(dtype) == "torch.bfloat16"
