"""vLLM's own block manager over one bounded group of layers, as the scheduler drives it."""

from dataclasses import dataclass, field

import torch
from vllm import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

import metronome.plugin
from metronome.plugin.kv_cache import SinkWindowManager, SinkWindowSpec
from metronome.window import Bound

MAX_MODEL_LEN = 100_000


def spec_for(bound: Bound, block_size: int | None = None) -> SinkWindowSpec:
    stock = FullAttentionSpec(
        block_size=block_size or bound.block_size, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    spec: SinkWindowSpec = SinkWindowSpec.from_stock(stock, bound, report_dir=None)
    return spec


@dataclass
class Served:
    """One session: the scheduler's request, and the block row a worker has been sent."""

    request: Request
    start: int = 0
    row: list[int] = field(default_factory=list)


class Pool:
    """max_chunk: tokens a session may be given at once."""

    def __init__(self, bound: Bound, num_blocks: int, max_chunk: int) -> None:
        metronome.plugin.register()
        self.bound, self.max_chunk = bound, max_chunk
        self.spec = spec_for(bound)
        group = KVCacheGroupSpec(["layer"], self.spec)
        self.blocks = KVCacheManager(
            KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=bound.block_size,
            hash_block_size=bound.block_size,
            max_in_flight_tokens=max_chunk,
            enable_caching=False,
        )
        (self.manager,) = self.blocks.coordinator.single_type_managers
        assert isinstance(self.manager, SinkWindowManager)
        self.served: dict[str, Served] = {}

    def grow(self, name: str, num_tokens: int) -> bool:
        """Schedule a chunk of `num_tokens`; False if the pool has no room for it."""
        if name not in self.served:
            request = Request(name, [0] * MAX_MODEL_LEN, SamplingParams(max_tokens=1), None)
            self.served[name] = Served(request)
        one = self.served[name]
        new_blocks = self.blocks.allocate_slots(one.request, num_tokens)
        if new_blocks is None:
            return False
        one.row += new_blocks.get_block_ids()[0]
        one.start = one.request.num_computed_tokens
        one.request.num_computed_tokens += num_tokens
        return True

    def drop(self, name: str) -> None:
        """Finish, abort or preempt: the blocks go back, and a later `grow` starts anew."""
        if name in self.served:
            self.blocks.free(self.served.pop(name).request)

    def held(self, name: str) -> list[int]:
        """Physical blocks the session holds, in order; 0 where one was given up."""
        ids: list[int] = self.blocks.get_block_ids(name)[0]
        return ids

    @property
    def num_free(self) -> int:
        free: int = self.blocks.block_pool.get_num_free_blocks()
        return free
