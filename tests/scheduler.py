"""vLLM's own scheduler over a model that answers at once: what it does with a full pool, without an engine."""

from pathlib import Path

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

CHECKPOINT = Path(__file__).parent.parent / ".cache" / "smollm2"
SPOKEN, STOP = 5, 7
BLOCK = 32


class Engine:
    """Sessions by name; a turn samples as many tokens as it is told to, and ends with STOP before max_tokens."""

    def __init__(self, num_blocks: int, max_tokens: int) -> None:
        import torch

        args = EngineArgs(
            model=str(CHECKPOINT), max_model_len=4096, block_size=BLOCK, num_gpu_blocks_override=num_blocks + 1,
            enforce_eager=True, enable_prefix_caching=False, max_num_seqs=64, max_num_batched_tokens=512,
        )  # fmt: skip
        config = args.create_engine_config()
        config.cache_config.num_gpu_blocks = num_blocks + 1
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        pool = KVCacheConfig(num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = Scheduler(config, pool, StructuredOutputManager(config), block_size=BLOCK)
        self.max_tokens = max_tokens
        self.lengths: dict[str, list[int]] = {}  # of turns to come
        self.sampled: dict[str, int] = {}  # of the turn that goes on
        self.turns_done: dict[str, int] = {}

    def say(self, name: str, tokens_in: int, length: int) -> None:
        """A frame of `tokens_in` tokens, whose turn will sample `length`."""
        self.lengths.setdefault(name, []).append(length)
        self.scheduler.add_request(self._request(name, tokens_in, resumable=True))

    def end(self, name: str) -> None:
        """The caller has said everything."""
        self.scheduler.add_request(self._request(name, 1, resumable=False))

    def hang_up(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _request(self, name: str, tokens_in: int, resumable: bool) -> Request:
        params = SamplingParams(max_tokens=self.max_tokens, stop_token_ids=[STOP])
        return Request(name, [SPOKEN] * tokens_in, params, None, resumable=resumable)

    def run(self) -> bool:
        """Step until nothing can run; whether any token was sampled."""
        spoke = False
        while True:
            step = self.scheduler.schedule()
            names = list(step.num_scheduled_tokens)
            tokens = [self._sample(name) for name in names]
            spoke |= any(tokens)
            output = ModelRunnerOutput(names, {n: i for i, n in enumerate(names)}, sampled_token_ids=tokens)
            self.scheduler.update_from_output(step, output)
            if not names and not step.preempted_req_ids:
                return spoke

    def _sample(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        if request.num_computed_tokens < request.num_tokens:
            return []  # more of its prompt to come
        self.sampled[name] = self.sampled.get(name, 0) + 1
        length = self.lengths[name][0]
        if self.sampled[name] < length:
            return [SPOKEN]
        self.lengths[name].pop(0)
        self.sampled[name] = 0
        self.turns_done[name] = self.turns_done.get(name, 0) + 1
        return [STOP if length < self.max_tokens else SPOKEN]

    @property
    def num_free(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
