"""Every import from vLLM, so that a new vLLM version breaks one file.

Importing this module imports what all processes need; attention code is imported where it runs.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.config import (
    VllmConfig,
    get_current_vllm_config_or_none,
    get_layers_from_vllm_config,
)
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import (
    AttentionBackendEnum,
    MambaAttentionBackendEnum,
    register_backend,
)
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

__all__ = [
    "AttentionCGSupport",
    "AttentionMetadataBuilder",
    "CommonAttentionMetadata",
    "DeviceCapability",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheSpec",
    "SlidingWindowManager",
    "SlidingWindowSpec",
    "VllmConfig",
]

DECODER = AttentionType.DECODER
CPU_BACKENDS = ("CPU_ATTN",)
CUDA_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER")
# Those whose cache is [num_blocks, heads, block_size, key | value]; FlashInfer's depends on the kernels it picks.
KEYS_BEFORE_VALUES = ("FLASH_ATTN", "TRITON_ATTN")
# Tags of vLLM's enumeration that name no backend of their own.
_NO_BACKENDS = ("TORCH_SDPA", "CUSTOM", "NO_ATTENTION")

# vLLM gives handlers to its own logger tree only.
logger = init_logger("vllm.metronome")


def current_config() -> VllmConfig | None:
    """The configuration of the engine being built, None outside vLLM's config context."""
    return get_current_vllm_config_or_none()


def options_of(config: VllmConfig) -> Mapping[str, Any] | None:
    """`additional_config["metronome"]`, or None for a stock engine."""
    additional = config.additional_config
    return additional.get("metronome") if isinstance(additional, Mapping) else None


def is_cuda() -> bool:
    return bool(current_platform.is_cuda())


def bounded_backends() -> tuple[str, ...]:
    """Attention backends of this platform that the bound can drive."""
    return CUDA_BACKENDS if is_cuda() else CPU_BACKENDS


def register_backends(module: str) -> None:
    """Let `module` answer for each attention backend, by its name."""
    for member in (*AttentionBackendEnum, *MambaAttentionBackendEnum):
        if member.name not in _NO_BACKENDS:
            is_mamba = isinstance(member, MambaAttentionBackendEnum)
            register_backend(member, f"{module}.{member.name}", is_mamba=is_mamba)


def register_custom_backend(path: str) -> None:
    """Let `path` answer for backend CUSTOM, unless another plugin has taken it."""
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, path)


def custom_backend_path() -> str:
    return str(AttentionBackendEnum.CUSTOM.get_path())


def chosen_backend(config: VllmConfig) -> str | None:
    """The attention backend that an engine was told to use; None leaves it to vLLM."""
    backend = config.attention_config.backend
    return None if backend is None else str(backend.name)


def choose_custom_backend(config: VllmConfig) -> None:
    config.attention_config.backend = AttentionBackendEnum.CUSTOM


def wrap_platform_check(wrapper: Callable[..., Any]) -> None:
    """Have the check of every new configuration answer with `wrapper(original, config)`."""
    # On the instance: on the class, the function would be bound once more.
    wrap_once(current_platform, "check_and_update_config", wrapper)


def stock_backend(name: str) -> Any:
    """The class vLLM ships under `name`, whatever has been registered over it."""
    for members in (AttentionBackendEnum, MambaAttentionBackendEnum):
        if name in members.__members__:
            return resolve_obj_by_qualname(members[name].value)
    raise AttributeError(f"vLLM has no attention backend {name!r}")


def register_spec(spec: type, manager: type) -> None:
    # vLLM fills its registry only while it is empty: let it do so before adding to it.
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    KVCacheSpecRegistry.register(spec, manager, uniform_type_base_spec=spec)


def attention_layers(config: VllmConfig, names: list[str] | None = None) -> list[Any]:
    """Attention layers that own a KV cache, in model order; all of them unless named."""
    from vllm.model_executor.layers.attention import Attention

    layers = get_layers_from_vllm_config(config, Attention, names).values()
    return [layer for layer in layers if layer.kv_sharing_target_layer_name is None]


def has_attention_metadata() -> bool:
    """Whether the present forward pass is one that a metadata builder has prepared."""
    return get_forward_context().attn_metadata is not None


def rotary_embeddings() -> list[Any]:
    """The rotary modules that the models of this process have built."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    return list(_ROPE_DICT.values())


def wrap_once(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Have `owner.name(...)` answer with `wrapper(original, ...)`."""
    original = getattr(owner, name)
    if getattr(original, "metronome_wraps", None) is not None:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    wrapped.metronome_wraps = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def unwrap(owner: Any, name: str) -> None:
    """Undo wrap_once."""
    setattr(owner, name, getattr(owner, name).metronome_wraps)


def mrope_audio_models() -> list[Any]:
    """Model classes that hear audio and rotate by M-RoPE; none where torchvision, which they import, is missing."""
    try:
        from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerForConditionalGeneration
        from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerForConditionalGeneration
    except ImportError:
        return []
    return [Qwen2_5OmniThinkerForConditionalGeneration, Qwen3OmniMoeThinkerForConditionalGeneration]


def minicpmo_info() -> Any:
    from vllm.model_executor.models.minicpmo import MiniCPMOProcessingInfo

    return MiniCPMOProcessingInfo


def scheduler_output() -> Any:
    """The module that describes a request to the worker."""
    from vllm.v1.core.sched import output

    return output


def text_positions(num_tokens: int) -> torch.Tensor:
    """M-RoPE positions of tokens that stand one after the other, [3, num_tokens]."""
    return torch.arange(num_tokens).expand(3, -1).contiguous()
