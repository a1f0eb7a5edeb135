"""Attention head shapes that the kernels are compiled and timed for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadShape:
    """Heads of one layer on one GPU; head_size in elements."""

    num_heads: int
    num_kv_heads: int
    head_size: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads


# From the models' published configurations; the last is no model here, but the largest head the kernels take.
HEAD_SHAPES = {
    "smollm2": HeadShape(9, 3, 64),
    "qwen2_5_omni": HeadShape(28, 4, 128),
    "qwen3_omni_30b": HeadShape(32, 4, 128),
    "minicpm_o_4_5": HeadShape(32, 8, 128),
    "moshi": HeadShape(32, 32, 128),
    "head256": HeadShape(16, 8, 256),
}
OMNI_MODELS = ("qwen2_5_omni", "qwen3_omni_30b", "minicpm_o_4_5", "moshi")
