"""`additional_config["metronome"]["kernel"]`: attention by our own kernel, as vLLM's backend CUSTOM.

Stock kernels see whole blocks and sinks that were rewritten at each slide; this one is exact to the token and moves the
sinks in registers, so that a slide writes nothing and no raw keys are kept.
"""

from typing import Any

from metronome.plugin import compat
from metronome.plugin.compat import VllmConfig
from metronome.window import OPTIONS_KEY

BACKEND_PATH = "metronome.plugin.kernel_backend.CUSTOM"


def register() -> None:
    """Make the backend known to this process, and have engines choose it whose options ask for it."""
    compat.register_custom_backend(BACKEND_PATH)
    compat.wrap_platform_check(_choose)


def _choose(original: Any, config: VllmConfig) -> None:
    """vLLM's own check of a new engine's configuration, and then the kernel's backend, if it is asked for."""
    original(config)
    options = compat.options_of(config)
    if options is None or options.get("kernel") is None:
        return
    problem = _problem(config)
    if problem:
        raise ValueError(f"{OPTIONS_KEY}.kernel={options['kernel']!r}: {problem}")
    compat.choose_custom_backend(config)


def _problem(config: VllmConfig) -> str | None:
    if not compat.is_cuda():
        return "needs a CUDA GPU; leave the option out, and the stock kernel keeps the bound"
    chosen = compat.chosen_backend(config)
    if chosen not in (None, "CUSTOM"):
        return f"is an attention backend of its own, and attention_backend={chosen} asks for another; leave one out"
    if compat.custom_backend_path() != BACKEND_PATH:
        return f"another plugin has registered {compat.custom_backend_path()} as backend CUSTOM; remove that plugin"
    if config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16"):
        return f"cannot read kv_cache_dtype={config.cache_config.cache_dtype!r}; set it to 'auto'"
    return None
