"""The bound in the scheduler's process: which blocks a session holds."""

from dataclasses import dataclass, field, fields
from typing import Any

from metronome.plugin import report, versions
from metronome.plugin.compat import (
    FullAttentionSpec,
    KVCacheBlock,
    KVCacheSpec,
    SlidingWindowManager,
    SlidingWindowSpec,
    logger,
)
from metronome.window import Bound, blocks_for


@dataclass(frozen=True, kw_only=True)
class SinkWindowSpec(SlidingWindowSpec):  # type: ignore[misc]  # vLLM is not type-checked
    """A layer that keeps `sinks` first and `sliding_window` most recent tokens of a session.

    bound_block_size: the unit the bound is rounded to. The worker may see smaller kernel blocks.
    """

    sinks: int = 0
    positions: str = "keep"
    bound_block_size: int
    report_dir: str | None = field(default=None, compare=False)

    @classmethod
    def from_stock(cls, spec: FullAttentionSpec, bound: Bound, report_dir: str | None) -> Any:
        """The bounded form of a full-attention layer, same memory layout."""
        names = {item.name for item in fields(cls)}
        kept = {
            item.name: getattr(spec, item.name)
            for item in fields(spec)
            if item.init and item.name in names and item.name != "sliding_window"
        }
        return cls(
            sliding_window=bound.window,
            sinks=bound.sinks,
            positions=bound.positions,
            bound_block_size=bound.block_size,
            report_dir=report_dir,
            **kept,
        )

    def bound(self, block_size: int) -> Bound:
        return Bound(
            window=self.sliding_window,
            sinks=self.sinks,
            positions=self.positions,
            block_size=block_size,
        )

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """The plateau, so that start-up asks of the pool what a session will really hold."""
        plateau = self.bound(self.block_size).max_blocks(max_in_flight_tokens)
        return min(plateau, blocks_for(max_model_len, self.block_size))

    def is_uniform_with_collection(self, kv_cache_specs: dict[str, KVCacheSpec]) -> bool:
        mine = (self.sliding_window, self.sinks, self.positions)
        return all(
            isinstance(spec, SinkWindowSpec) and (spec.sliding_window, spec.sinks, spec.positions) == mine
            for spec in kv_cache_specs.values()
        )


class SinkWindowManager(SlidingWindowManager):  # type: ignore[misc]  # vLLM is not type-checked
    """Frees the blocks between the sinks and the window.

    Sink blocks go back to the next session's sinks while they are free. So at most as many blocks
    as sessions were ever sinks at once, and the worker can keep their raw keys in that many slots.
    """

    def __init__(self, kv_cache_spec: SinkWindowSpec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self.bound = kv_cache_spec.bound(self.block_size)
        self._returned_sinks: list[KVCacheBlock] = []
        facts = report.write(kv_cache_spec.report_dir, "scheduler", **describe(self, self.bound))
        logger.info_once("metronome bound live: %s", report.sentence(facts))

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        first = self.bound.num_sink_blocks
        last = self.bound.first_window_block(processed_computed_tokens)
        self._remove_blocks_in_range(request_id, first, last)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        blocks = self.req_to_blocks[request_id]
        wanted = min(self.bound.num_sink_blocks, blocks_for(num_tokens, self.block_size))
        reused = self._take_returned_sinks(wanted - len(blocks))
        blocks.extend(reused)
        fresh = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        return [*reused, *fresh]

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request_id)
        self._returned_sinks.extend(blocks[: self.bound.num_sink_blocks])
        return blocks

    def _take_returned_sinks(self, num_blocks: int) -> list[KVCacheBlock]:
        taken: list[KVCacheBlock] = []
        while len(taken) < num_blocks and self._returned_sinks:
            block = self._returned_sinks.pop()
            # A window may have taken it since; it is then no sink block any more.
            if block.ref_cnt == 0:
                self.block_pool.touch([block])
                taken.append(block)
        if self.records_new_block_ids:
            self.new_block_ids.extend(block.block_id for block in taken)
        return taken


def describe(owner: object, bound: Bound) -> dict[str, Any]:
    """What a process reports about the bound it runs."""
    return {
        "class": type(owner).__name__,
        "window": bound.window,
        "window_blocks": blocks_for(bound.window, bound.block_size),
        "sinks": bound.sinks,
        "sink_blocks": bound.num_sink_blocks,
        "positions": bound.positions,
        "block_size": bound.block_size,
        "vllm": versions.installed(),
    }
