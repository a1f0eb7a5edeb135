"""The bound in the worker's process: stock attention over a compacted block table.

Keys are cached after rotation and causal masks are aligned at the sequence's end, so dropping
whole blocks from the middle of a block table and shortening `seq_lens` by as much is exact for any
stock kernel, for prefill chunks and decodes alike.
"""

from typing import Any

import torch

from metronome.plugin import compat, report
from metronome.plugin.anchor import SinkAnchor
from metronome.plugin.compat import (
    CommonAttentionMetadata,
    VllmConfig,
    logger,
)
from metronome.plugin.kv_cache import SinkWindowSpec, describe
from metronome.plugin.refuse import check_config, is_boundable, refuse_backend, refuse_layer
from metronome.plugin.rotary import find_rotation
from metronome.plugin.table import WindowTable
from metronome.window import Bound


class SinkWindowBuilder:
    """Mixed into a stock metadata builder: the kernel sees each session's kept blocks only."""

    # A shortcut that would hand the kernel the full block table.
    supports_update_block_table = False

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
        **kwargs: Any,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, **kwargs)  # type: ignore[call-arg]
        self._window_table: WindowTable | None = None
        self._sinks: SinkAnchor | None = None
        if isinstance(kv_cache_spec, SinkWindowSpec):
            self._window_table = WindowTable(kv_cache_spec, vllm_config, device)
            if self._window_table.bound.anchored:
                layers = compat.attention_layers(vllm_config, layer_names)
                self._sinks = _anchor_of(layers, self._window_table, vllm_config, device)
            say_live(self, kv_cache_spec, vllm_config)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        full = seen = common_attn_metadata
        if self._window_table is not None:
            gap = self._window_table.gap_blocks(full.compute_num_computed_tokens())
            seen = self._window_table.compact(full, gap)
            if self._sinks is not None:
                rows = self._window_table.sink_rows(full, gap)
                self._sinks.begin_step(full.slot_mapping, rows)
        return super().build(common_prefix_len, seen, fast_build)  # type: ignore[misc]


def _anchor_of(layers: list[Any], table: WindowTable, config: VllmConfig, device: torch.device) -> SinkAnchor:
    scheduler = config.scheduler_config
    return SinkAnchor(
        layers,
        find_rotation(layers[0].head_size, device),
        num_slots=scheduler.max_num_seqs * table.num_sink_blocks,
        block_size=table.block_size,
        max_num_tokens=scheduler.max_num_batched_tokens,
        device=device,
    )


class SinkWindowImpl:
    """Mixed into a stock attention implementation: holds its layer's raw sink keys, and values where it must."""

    keys_before_values = False  # whether a token's cached key lies right before its value (`bounded_backend`)
    _anchor: SinkAnchor | None = None

    def attach(self, anchor: SinkAnchor, layer: Any) -> None:
        self._anchor = anchor
        self._raw_keys = anchor.raw_store(layer, layer.head_size)
        # vLLM's own cache update, in the backend's own layout, writes keys and values together.
        self._raw_values = None if self._writes_keys_alone(anchor) else anchor.raw_store(layer, layer.head_size_v)

    def _writes_keys_alone(self, anchor: SinkAnchor) -> bool:
        is_plain = self.kv_cache_dtype in ("auto", "float16", "bfloat16")  # type: ignore[attr-defined]
        return self.keys_before_values and is_plain and not anchor.on_host

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)  # type: ignore[misc]
        # A forward pass without metadata is a warm-up or a dummy, for which nothing was located.
        if self._anchor is not None and compat.has_attention_metadata():
            self._anchor.capture(self._raw_keys, key, slot_mapping.numel())
            if self._raw_values is not None:
                self._anchor.capture(self._raw_values, value, slot_mapping.numel())

    def write_sinks(
        self,
        layer: Any,
        source: torch.Tensor,
        target: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> None:
        """Rotate raw rows [K, B] into cache slots [K * B]."""
        assert self._anchor is not None, "sinks are rotated by an anchor"
        rotation = self._anchor.rotation
        if self._raw_values is None:
            keys_in_cache = layer.kv_cache.transpose(1, 2)[..., : layer.head_size]
            from metronome_kernels.rotate_sinks import rotate_sinks  # Triton, which a CPU engine can do without

            rotate_sinks(keys_in_cache, self._raw_keys, source, target, cos, sin, rotation.is_neox_style)
            return
        keys = rotation.turn(self._raw_keys[source], cos, sin).flatten(0, 1)
        values = self._raw_values[source].flatten(0, 1)
        super().do_kv_cache_update(layer, keys, values, layer.kv_cache, target)  # type: ignore[misc]

    def fused_rope_kvcache_supported(self) -> bool:
        """A fused update would bypass the capture of raw keys."""
        return False

    def fused_qk_norm_rope_kvcache_supported(self) -> bool:
        return False

    def fused_qk_norm_mrope_kvcache_supported(self) -> bool:
        return False


class SinkWindowBackend:
    """Mixed into a stock backend that the bound can drive."""

    # The engine being built, if it asks for a bound. vLLM calls `customize_spec` and
    # `get_builder_cls` outside its config context, after it has built the layers inside one.
    config: VllmConfig | None = None
    impl_cls: type
    builder_cls: type

    @classmethod
    def get_impl_cls(cls) -> type:
        config = compat.current_config()
        if config is not None:
            cls.config = config if compat.options_of(config) is not None else None
        if cls.config is None:
            return super().get_impl_cls()  # type: ignore[misc, no-any-return]
        check_config(cls.config)
        return cls.impl_cls

    @classmethod
    def get_builder_cls(cls) -> type:
        if cls.config is None:
            return super().get_builder_cls()  # type: ignore[misc, no-any-return]
        return cls.builder_cls

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        spec = super().customize_spec(spec)  # type: ignore[misc]
        if cls.config is None or not is_boundable(spec, cls.config):
            return spec
        refuse_layer(spec)
        options = compat.options_of(cls.config) or {}
        bound = Bound.from_options(options, spec.block_size)
        return SinkWindowSpec.from_stock(spec, bound, options.get("report_dir"))


class UnboundedBackend:
    """Mixed into every other stock backend: an engine that asks for a bound must not start."""

    @classmethod
    def get_impl_cls(cls) -> type:
        config = compat.current_config()
        if config is not None and compat.options_of(config) is not None:
            check_config(config)
            refuse_backend(cls.get_name())  # type: ignore[attr-defined]
        return super().get_impl_cls()  # type: ignore[misc, no-any-return]


class UnboundedBuilder:
    """Mixed into the builders of recurrent layers, which have no implementation to ask for."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, *args: Any) -> None:
        if compat.options_of(vllm_config) is not None:
            check_config(vllm_config)
        super().__init__(kv_cache_spec, layer_names, vllm_config, *args)  # type: ignore[call-arg]


def bounded_backend(name: str) -> type:
    """The backend vLLM ships as `name`, able to keep a bound."""
    stock = compat.stock_backend(name)
    impl = mixed(SinkWindowImpl, stock.get_impl_cls(), keys_before_values=name in compat.KEYS_BEFORE_VALUES)
    builder = mixed(SinkWindowBuilder, stock.get_builder_cls())
    return mixed(SinkWindowBackend, stock, impl_cls=impl, builder_cls=builder)


def unbounded_backend(name: str) -> type:
    """The backend vLLM ships as `name`, which refuses a bound."""
    stock = compat.stock_backend(name)
    if not stock.is_ssm():
        return mixed(UnboundedBackend, stock)
    builder = mixed(UnboundedBuilder, stock.get_builder_cls())
    return mixed(object, stock, get_builder_cls=staticmethod(lambda: builder))


def mixed(mixin: type, stock: type, **attributes: Any) -> type:
    """stock with mixin's methods before its own."""
    bases = (stock,) if mixin is object else (mixin, stock)
    return type(f"{mixin.__name__}[{stock.__name__}]", bases, {"__module__": __name__} | attributes)


def say_live(builder: object, spec: SinkWindowSpec, config: VllmConfig) -> None:
    """Report the bound that a metadata builder has begun to keep."""
    layers = [each for each in compat.attention_layers(config) if each.sliding_window is None]
    facts = describe(builder, spec.bound(spec.bound_block_size))
    record = report.write(spec.report_dir, "worker", num_layers=len(layers), **facts)
    logger.info_once("metronome bound live: %s", report.sentence(record))


def __getattr__(name: str) -> type:
    """`metronome.plugin.attention.CPU_ATTN` and so on, made when vLLM first asks for one."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make = bounded_backend if name in compat.bounded_backends() else unbounded_backend
    made = make(name)
    # vLLM groups layers by the path of their backend.
    made.__qualname__ = name
    globals()[name] = made
    return made
