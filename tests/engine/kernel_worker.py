"""A worker of vLLM's CPU engine whose attention is our kernel, in Triton's interpreter.

Loaded in the worker's process by name; that process must have been started with TRITON_INTERPRET=1. CPU_ATTN, which is
all that this platform chooses, answers with the kernel's backend.
"""

import torch
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.cpu_worker import CPUWorker


class KernelWorker(CPUWorker):
    """The stock worker, once this module has been imported."""

    def load_model(self, *args, **kwargs):
        register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.INTERPRETED")
        super().load_model(*args, **kwargs)


def __getattr__(name):
    """INTERPRETED, made when vLLM asks for it: the plugin's modules must be imported after vLLM's."""
    if name != "INTERPRETED":
        raise AttributeError(name)
    from metronome.plugin import kernel_backend

    class OnHost(kernel_backend.KernelImpl):
        def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
            """vLLM writes the cache with a kernel of its own, which it switches off on a CPU."""
            held = slot_mapping >= 0
            block, offset = slot_mapping[held] // kv_cache.shape[2], slot_mapping[held] % kv_cache.shape[2]
            fresh = torch.cat((key, value), dim=-1)[: len(slot_mapping)][held]
            kv_cache[block, :, offset] = fresh.to(kv_cache.dtype)

    backend = type("INTERPRETED", (kernel_backend.CUSTOM,), {"impl_cls": OnHost, "__module__": __name__})
    globals()[name] = backend
    return backend
