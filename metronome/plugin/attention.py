"""The bound in the worker's process: stock attention over a compacted block table.

Keys are cached after rotation and causal masks are aligned at the sequence's end, so dropping
whole blocks from the middle of a block table and shortening `seq_lens` by as much is exact for any
stock kernel, for prefill chunks and decodes alike.
"""

from typing import Any

import torch

from metronome.plugin import compat, report
from metronome.plugin.anchor import SinkAnchor, SinkRows
from metronome.plugin.compat import (
    CommonAttentionMetadata,
    FullAttentionSpec,
    VllmConfig,
    logger,
)
from metronome.plugin.kv_cache import SinkWindowSpec, describe
from metronome.plugin.refuse import check_config
from metronome.plugin.rotary import find_rotation
from metronome.window import Bound, blocks_for


class WindowTable:
    """Compacts each step's block table to [sinks | window], into buffers that keep their address.

    Blocks here are the kernel's, which may be smaller than those the bound is rounded to.
    """

    def __init__(self, spec: SinkWindowSpec, config: VllmConfig, device: torch.device) -> None:
        scheduler, max_model_len = config.scheduler_config, config.model_config.max_model_len
        self.bound = spec.bound(spec.bound_block_size)
        self.block_size = spec.block_size
        self.blocks_per_unit = spec.bound_block_size // spec.block_size
        self.num_sink_blocks = self.bound.num_sink_blocks * self.blocks_per_unit
        plateau = self.bound.max_blocks(scheduler.max_num_batched_tokens) * self.blocks_per_unit
        width = min(plateau, blocks_for(max_model_len, self.block_size))
        self.column = torch.arange(width, device=device)
        rows = scheduler.max_num_seqs
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32, device=device)

    def gap_blocks(self, num_computed_tokens: torch.Tensor) -> torch.Tensor:
        """`Bound.gap_blocks` for [R] rows, in kernel blocks."""
        bound = self.bound
        first = (num_computed_tokens - bound.window + 1).clamp(min=0) // bound.block_size
        return (first - bound.num_sink_blocks).clamp(min=0) * self.blocks_per_unit

    def compact(self, metadata: CommonAttentionMetadata, gap: torch.Tensor) -> Any:
        """The batch as the kernel shall see it: `gap` [R] blocks left out after the sinks."""
        full_table = metadata.block_table_tensor
        num_rows, num_columns = full_table.shape
        source = self.column + gap[:, None] * (self.column >= self.num_sink_blocks)
        table, seq_lens = self.table[:num_rows], self.seq_lens[:num_rows]
        torch.gather(full_table, 1, source.clamp(max=num_columns - 1), out=table)
        torch.sub(metadata.seq_lens, gap * self.block_size, out=seq_lens)
        return metadata.replace(
            block_table_tensor=table,
            seq_lens=seq_lens,
            max_seq_len=min(metadata.max_seq_len, self.column.numel() * self.block_size),
            seq_lens_cpu_upper_bound=self._host_seq_lens(metadata),
            _num_computed_tokens_cache=None,
        )

    def sink_rows(self, full: CommonAttentionMetadata, gap: torch.Tensor) -> SinkRows:
        """The blocks that real rows hold. Padding has no query, a dummy run no slots."""
        num_rows = full.num_reqs
        start = full.query_start_loc[:-1]
        last_token = full.slot_mapping.numel() - 1
        is_real = (full.naive_query_lens() > 0) & (full.slot_mapping[start.clamp(max=last_token)] >= 0)
        held = self.column * self.block_size < self.seq_lens[:num_rows, None]
        blocks = torch.where(held & is_real[:, None], self.table[:num_rows], 0).long()
        sinks = self.num_sink_blocks
        shift = (gap * self.block_size).long()
        return SinkRows(blocks[:, :sinks], blocks[:, sinks:], shift)

    def _host_seq_lens(self, metadata: CommonAttentionMetadata) -> torch.Tensor | None:
        seq_lens: torch.Tensor | None = metadata.seq_lens_cpu_upper_bound
        if seq_lens is None:
            return None
        start = metadata.query_start_loc_cpu
        gap = self.gap_blocks(seq_lens - (start[1:] - start[:-1]))
        return (seq_lens - gap * self.block_size).to(seq_lens.dtype)


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
        self.window: WindowTable | None = None
        self.anchor: SinkAnchor | None = None
        if isinstance(kv_cache_spec, SinkWindowSpec):
            self.window = WindowTable(kv_cache_spec, vllm_config, device)
            _report(self, kv_cache_spec, layer_names)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        metadata = common_attn_metadata
        if self.window is not None:
            gap = self.window.gap_blocks(metadata.compute_num_computed_tokens())
            metadata = self.window.compact(metadata, gap)
            if self.window.bound.anchored:
                rows = self.window.sink_rows(common_attn_metadata, gap)
                self._anchor().begin_step(common_attn_metadata.slot_mapping, rows)
        return super().build(common_prefix_len, metadata, fast_build)  # type: ignore[misc]

    def _anchor(self) -> SinkAnchor:
        # Made at the first step: caches are given to the layers after builders are made.
        if self.anchor is None:
            assert self.window is not None
            names, config = self.layer_names, self.vllm_config  # type: ignore[attr-defined]
            layers = compat.attention_layers(config, names)
            num_slots = config.scheduler_config.max_num_seqs * self.window.num_sink_blocks
            rotation = find_rotation(layers[0].head_size, self.device)  # type: ignore[attr-defined]
            self.anchor = SinkAnchor(layers, rotation, num_slots, self.window.block_size)
        return self.anchor


class SinkWindowImpl:
    """Mixed into a stock attention implementation: hands sink keys to the anchor."""

    anchor: SinkAnchor | None = None

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)  # type: ignore[misc]
        if self.anchor is not None:
            self.anchor.capture(self, key, value)

    def write_sinks(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Put rotated keys into the cache, in the backend's own layout."""
        super().do_kv_cache_update(layer, key, value, layer.kv_cache, slots)  # type: ignore[misc]


class SinkWindowBackend:
    """Mixed into a stock backend. Stock classes serve engines that set no bound."""

    # What the engine being built asks for. vLLM calls `customize_spec` and `get_builder_cls`
    # outside its config context, after it has built the layers inside one.
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
        if cls.config is None or type(spec) is not FullAttentionSpec:
            return spec
        options = compat.options_of(cls.config) or {}
        bound = Bound.from_options(options, spec.block_size)
        return SinkWindowSpec.from_stock(spec, bound, options.get("report_dir"))


def bounded_backend(name: str) -> type:
    """The backend vLLM ships as `name`, able to keep a bound."""
    stock: Any = compat.stock_backend(name)
    impl = _mixed(SinkWindowImpl, stock.get_impl_cls())
    builder = _mixed(SinkWindowBuilder, stock.get_builder_cls())
    made = _mixed(SinkWindowBackend, stock, impl_cls=impl, builder_cls=builder)
    # vLLM groups layers by the path of their backend.
    made.__qualname__ = name
    return made


def _mixed(mixin: type, stock: type, **attributes: Any) -> type:
    name = f"{mixin.__name__}[{stock.__name__}]"
    return type(name, (mixin, stock), {"__module__": __name__, **attributes})


def _report(builder: object, spec: SinkWindowSpec, layer_names: list[str]) -> None:
    facts = describe(builder, spec.bound(spec.bound_block_size))
    record = report.write(spec.report_dir, "worker", num_layers=len(layer_names), **facts)
    logger.info("metronome bound live: %s", report.sentence(record))


def __getattr__(name: str) -> type:
    """`metronome.plugin.attention.CPU_ATTN` and so on, made when vLLM first asks for one."""
    if name not in compat.backend_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = bounded_backend(name)
    globals()[name] = made
    return made
