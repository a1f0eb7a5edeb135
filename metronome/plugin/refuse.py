"""What the bound cannot serve, refused while the engine starts, with the reason and the fix."""

from collections.abc import Callable
from typing import Any, NoReturn

from metronome.plugin import compat, versions
from metronome.plugin.compat import FullAttentionSpec, SlidingWindowSpec, VllmConfig
from metronome.window import OPTIONS_KEY, Bound

KEEP = "set additional_config.metronome.positions to 'keep' or sinks to 0"


def check_config(config: VllmConfig) -> Bound:
    """The bound that `config` asks for; ValueError if this engine cannot keep it."""
    options = compat.options_of(config)
    assert options is not None, "called for a stock engine"
    bound = Bound.from_options(options, config.cache_config.block_size)
    checks = _CHECKS + (_ANCHOR_CHECKS if bound.anchored else ()) + (_KERNEL_CHECKS if options.get("kernel") else ())
    for check in checks:
        problem = check(config, bound)
        if problem:
            raise ValueError(f"{OPTIONS_KEY}: {problem}")
    return bound


def is_boundable(spec: Any, config: VllmConfig) -> bool:
    """Whether a layer's cache is what the bound is for: full attention, or the window that all layers have.

    Such a window is wider than all that the bound holds (`_own_window`), so it never cuts what the bound keeps. In
    models that mix, layers with a window are bounded already.
    """
    if config.cache_config.sliding_window is not None and isinstance(spec, SlidingWindowSpec):
        return True
    return isinstance(spec, FullAttentionSpec)


def refuse_layer(spec: FullAttentionSpec | SlidingWindowSpec) -> None:
    """Layers of a special kind keep their blocks for a reason of their own."""
    non_causal = getattr(spec, "non_causal", False)
    if type(spec) not in (FullAttentionSpec, SlidingWindowSpec) or non_causal:
        kind = "non-causal" if non_causal else type(spec).__name__
        raise ValueError(f"{OPTIONS_KEY}: {kind} layers cannot be bounded; leave the option out")


def refuse_backend(name: str) -> NoReturn:
    """An attention backend that was never taught the bound."""
    allowed = ", ".join(compat.bounded_backends())
    raise ValueError(
        f"{OPTIONS_KEY}: attention backend {name} cannot keep a bound; set attention_backend to one of: {allowed}"
    )


def _prefix_caching(config: VllmConfig, bound: Bound) -> str | None:
    if not config.cache_config.enable_prefix_caching:
        return None
    return (
        "a prefix-cache hit would bring the window without its sinks; "
        "set enable_prefix_caching=False (--no-enable-prefix-caching)"
    )


def _latent_attention(config: VllmConfig, bound: Bound) -> str | None:
    if not config.model_config.use_mla:
        return None
    return "multi-head latent attention (MLA) is not supported; leave the option out"


def _recurrent(config: VllmConfig, bound: Bound) -> str | None:
    model = config.model_config
    if not (model.is_hybrid or model.is_attention_free):
        return None
    return (
        "models with recurrent (Mamba, linear-attention) layers are not supported: their state "
        "does not grow; leave the option out"
    )


def _own_window(config: VllmConfig, bound: Bound) -> str | None:
    window = config.cache_config.sliding_window
    held = bound.max_blocks(config.scheduler_config.max_num_batched_tokens) * bound.block_size
    if window is None or held <= window:
        return None
    return (
        f"the model already keeps a window of {window} tokens in every layer, and the bound would hold up to {held}; "
        "leave the option out, or set window or max_num_batched_tokens lower"
    )


def _mixed_without_hybrid_manager(config: VllmConfig, bound: Bound) -> str | None:
    if not config.scheduler_config.disable_hybrid_kv_cache_manager or not _local_layers(config):
        return None
    return (
        "the model mixes layers with and without a window of their own, which needs vLLM's hybrid "
        "KV cache manager; leave disable_hybrid_kv_cache_manager unset"
    )


def _two_way_prefix(config: VllmConfig, bound: Bound) -> str | None:
    if not config.model_config.is_mm_prefix_lm:
        return None
    return "prefix-LM attention names its ranges by position in the full sequence; leave the option out"


def _speculation(config: VllmConfig, bound: Bound) -> str | None:
    if config.speculative_config is None:
        return None
    return "speculative decoding was not tested with the bound; leave speculative_config unset"


def _kv_transfer(config: VllmConfig, bound: Bound) -> str | None:
    if config.kv_transfer_config is None:
        return None
    return (
        "a KV connector would move blocks that the bound has freed, or bring a window without its "
        "sinks; leave kv_transfer_config and kv_offloading_size unset"
    )


def _split_batch(config: VllmConfig, bound: Bound) -> str | None:
    parallel = config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism splits a session's blocks; set its size to 1"
    if parallel.use_ubatching:
        return "dual-batch overlap splits a step's sessions; set enable_dbo=False"
    return None


def _length(config: VllmConfig, bound: Bound) -> str | None:
    max_model_len = config.model_config.max_model_len
    if bound.window <= max_model_len:
        return None
    return (
        f"window={bound.window} is larger than max_model_len={max_model_len}, so nothing would "
        f"ever be bounded; set window to {max_model_len} or less"
    )


def _unrotated_model(config: VllmConfig, bound: Bound) -> str | None:
    if not config.model_config.uses_alibi:
        return None
    return f"sinks cannot be anchored with ALiBi, whose keys are not rotated; {KEEP}"


def _unrotated_layers(config: VllmConfig, bound: Bound) -> str | None:
    text = config.model_config.hf_text_config
    for name in ("no_rope_layers", "use_rope_layers", "layer_rope_theta"):
        layers = getattr(text, name, None) or ()
        if not all(layers):
            return f"sinks cannot be anchored in layers without rotary embedding ({name}); {KEEP}"
    return None


def _mixed_layers(config: VllmConfig, bound: Bound) -> str | None:
    if not _local_layers(config):
        return None
    return (
        "sinks cannot be anchored in a model that mixes layers with and without a window of their "
        f"own, since these may rotate in different ways or not at all; {KEEP}"
    )


def _positions_in_space(config: VllmConfig, bound: Bound) -> str | None:
    model = config.model_config
    if not model.uses_mrope:
        return None
    seen = [name for name in ("image", "video") if _accepts(model, name)]
    if not seen:
        return None
    return (
        f"sinks cannot be anchored while the model accepts {' and '.join(seen)} input, whose "
        "tokens share positions; set limit_mm_per_prompt={'image': 0, 'video': 0}, or " + KEEP
    )


def _mixed_layers_for_kernel(config: VllmConfig, bound: Bound) -> str | None:
    if not _local_layers(config):
        return None
    return (
        "the model mixes layers with and without a window of their own, and kernel='sink_window' serves one kind only; "
        "leave kernel out"
    )


def _local_layers(config: VllmConfig) -> bool:
    text = config.model_config.hf_text_config
    kinds = getattr(text, "layer_types", None) or ()
    return any(kind != "full_attention" for kind in kinds)


def _accepts(model: Any, modality: str) -> bool:
    multimodal = model.multimodal_config
    return multimodal is not None and multimodal.get_limit_per_prompt(modality) > 0


def _untested_version(config: VllmConfig, bound: Bound) -> str | None:
    return versions.complaint()


Check = Callable[[VllmConfig, Bound], str | None]

_CHECKS: tuple[Check, ...] = (
    _untested_version,
    _latent_attention,
    _recurrent,
    _own_window,
    _mixed_without_hybrid_manager,
    _two_way_prefix,
    _prefix_caching,
    _speculation,
    _kv_transfer,
    _split_batch,
    _length,
)
_ANCHOR_CHECKS: tuple[Check, ...] = (
    _unrotated_model,
    _unrotated_layers,
    _mixed_layers,
    _positions_in_space,
)
_KERNEL_CHECKS: tuple[Check, ...] = (_mixed_layers_for_kernel,)
