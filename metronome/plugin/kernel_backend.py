"""Our attention kernel as a vLLM backend: full block tables, and angles by which each query's sinks move nearer."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from metronome_kernels import reference
from metronome_kernels.sink_window import sink_window_attention

from metronome.plugin import compat
from metronome.plugin.attention import SinkWindowBackend, mixed, say_live
from metronome.plugin.compat import CommonAttentionMetadata, VllmConfig
from metronome.plugin.kv_cache import SinkWindowSpec
from metronome.plugin.rotary import Rotation, find_rotation
from metronome.window import OPTIONS_KEY, Bound

_Stock: Any = compat.stock_backend("TRITON_ATTN")
MAX_HEAD_SIZE = 256


@dataclass
class KernelMetadata:
    """One step's batch for one group of layers; see `sink_window_attention` for shapes."""

    bound: Bound
    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    turn: tuple[torch.Tensor, torch.Tensor] | None
    is_neox: bool


class KernelBuilder(compat.AttentionMetadataBuilder):  # type: ignore[misc]  # vLLM is not type-checked
    """Angles once a step for all layers, in buffers that keep their address for CUDA graphs."""

    # Chunks choose another launch than decodes, which a captured graph could not.
    _cudagraph_support = compat.AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: SinkWindowSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        assert isinstance(kv_cache_spec, SinkWindowSpec), "layers that cannot be bounded were refused"
        self.bound = kv_cache_spec.bound(kv_cache_spec.bound_block_size)
        self.rotation: Rotation | None = None
        if self.bound.anchored:
            (layer, *_) = compat.attention_layers(vllm_config, layer_names)
            self.rotation = find_rotation(layer.head_size, device)
            shape = (vllm_config.scheduler_config.max_num_batched_tokens, self.rotation.inv_freq.numel())
            self._cos, self._sin = (torch.zeros(shape, device=device) for _ in range(2))
        say_live(self, kv_cache_spec, vllm_config)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> KernelMetadata:
        full = common_attn_metadata
        return KernelMetadata(
            bound=self.bound,
            num_actual_tokens=full.num_actual_tokens,
            max_query_len=full.max_query_len,
            query_start_loc=full.query_start_loc,
            seq_lens=full.seq_lens,
            block_table=full.block_table_tensor,
            slot_mapping=full.slot_mapping,
            turn=self._turn(full),
            is_neox=self.rotation is None or self.rotation.is_neox_style,
        )

    def _turn(self, full: CommonAttentionMetadata) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self.rotation is None:
            return None
        num_tokens = full.num_actual_tokens
        position = reference.queries_of(full.query_start_loc, full.seq_lens, num_tokens)
        gap = reference.gap_of(position, self.bound.window, self.bound.sinks)
        cos, sin = reference.cos_sin(gap, self.rotation.inv_freq)
        self._cos[:num_tokens].copy_(cos)
        self._sin[:num_tokens].copy_(sin)
        return self._cos[:num_tokens], self._sin[:num_tokens]


class KernelImpl(_Stock.get_impl_cls()):  # type: ignore[misc]
    """vLLM's Triton implementation writes the cache; ours reads it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        unsupported = {
            "ALiBi": self.alibi_slopes is not None,
            "a soft cap on logits": bool(self.logits_soft_cap),
            "learned sinks": self.sinks is not None,
        }
        for what, is_there in unsupported.items():
            if is_there:
                raise ValueError(f"{OPTIONS_KEY}.kernel: the model has {what}; leave the option out")

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: KernelMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output: [T, Hq, D]; kv_cache: [num_blocks, Hkv, B, 2 * D]. Returns output."""
        assert output_scale is None and output_block_scale is None, "fused output quantization is not supported"
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        step, num_tokens = attn_metadata, attn_metadata.num_actual_tokens
        by_token = kv_cache.transpose(1, 2)
        key_cache, value_cache = by_token[..., : self.head_size], by_token[..., self.head_size :]
        sink_window_attention(
            query[:num_tokens],
            key_cache,
            value_cache,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            window=step.bound.window,
            sinks=step.bound.sinks,
            scale=self.scale,
            max_query_len=step.max_query_len,
            turn=step.turn,
            is_neox=step.is_neox,
            output=output[:num_tokens],
        )
        return output

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

    def fused_rope_kvcache_supported(self) -> bool:
        return False


class _Kernel(_Stock):  # type: ignore[misc]
    """What the kernel can do, by vLLM's questions."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= MAX_HEAD_SIZE

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == compat.DECODER)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability >= compat.DeviceCapability(8, 0))

    @classmethod
    def supports_sink(cls) -> bool:
        """Learned sinks, that is: logits of their own, not tokens."""
        return False

    supports_mm_prefix = supports_rswa = supports_non_causal = supports_alibi_sqrt = supports_sink

    @classmethod
    def get_impl_cls(cls) -> type:
        raise ValueError(
            "attention backend CUSTOM is Metronome's kernel, which keeps a bound: set "
            'additional_config={"metronome": {"window": 512, "sinks": 4, "kernel": "sink_window"}}'
        )

    get_builder_cls = get_impl_cls


CUSTOM = mixed(SinkWindowBackend, _Kernel, impl_cls=KernelImpl, builder_cls=KernelBuilder)
CUSTOM.__qualname__ = "CUSTOM"
