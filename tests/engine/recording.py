"""Drives the real engine for the tests of the bound, and records what its scheduler decided."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, set_forkserver_preload
from pathlib import Path
from typing import Any
from unittest import mock

from command import ONE_PROCESS
from safetensors.torch import load_file, save_file
from vllm.v1.core.sched.scheduler import Scheduler

MODEL = Path(__file__).parents[2] / ".cache" / "smollm2"
CHUNK_LOG = "chunk_log"  # in additional_config
BLOCK_SIZE = 32
set_forkserver_preload(["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama"])


def first_layers(num_layers: int, folder: Path) -> Path:
    """The model cut down to its first layers: as real, and quicker to check."""
    weights = load_file(MODEL / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if layer_of(name) < num_layers}
    save_file(kept, folder / "model.safetensors")
    config = json.loads((MODEL / "config.json").read_text()) | {"num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder)
    return folder


def layer_of(weight: str) -> int:
    parts = weight.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1


class RecordingScheduler(Scheduler):
    """Writes every chunk it schedules, so that a reference can compute in the same chunks."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        with Path(self.vllm_config.additional_config[CHUNK_LOG]).open("a") as log:
            for request_id, num_tokens in output.num_scheduled_tokens.items():
                computed = self.requests[request_id].num_computed_tokens - num_tokens
                print(json.dumps([request_id, computed, num_tokens]), file=log)
        return output


@dataclass
class Session:
    """What one session said and heard: turns of prompt tokens, and tokens and logprobs out."""

    turns: Sequence[Sequence[int]]
    tokens_out: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)

    def token_ids(self) -> list[int]:
        """The session as the engine holds it: each turn's last sampled token is dropped."""
        ids: list[int] = []
        for number, turn in enumerate(self.turns):
            said = self.tokens[number * self.tokens_out : (number + 1) * self.tokens_out]
            ids += [*turn, *said[:-1]]
        return ids

    def positions_out(self) -> list[int]:
        """The position that each token out was sampled for."""
        positions, start = [], 0
        for turn in self.turns:
            start += len(turn)
            positions += range(start, start + self.tokens_out)
            start += self.tokens_out - 1
        return positions


class Engine:
    """An AsyncLLM on the CPU in float32, with every chunk on record.

    `start_method` of its process: "forkserver" imports vLLM once for all engines, and gives them the environment of the
    first; "spawn" starts from nothing.
    """

    def __init__(
        self, folder: Path, options: dict[str, Any] | None, start_method: str = "forkserver", **arguments: Any
    ) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.folder = folder
        self.log = folder / "chunks.jsonl"
        defaults = {
            "model": str(MODEL),
            "dtype": "float32",
            "max_model_len": 2048,
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks_override": 100,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "scheduler_cls": f"{__name__}.RecordingScheduler",
            "async_scheduling": False,  # the recording scheduler is the plain one
        }
        additional: dict[str, Any] = {CHUNK_LOG: str(self.log)}
        if options is not None:
            additional["metronome"] = options | {"report_dir": str(folder / "live")}
        arguments = defaults | arguments | {"additional_config": additional}
        with (
            mock.patch.dict(os.environ, ONE_PROCESS),
            mock.patch("vllm.v1.engine.utils.get_mp_context", partial(get_context, start_method)),
        ):
            self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def run(self, **sessions: Session) -> None:
        """Hold all sessions at once, and fill in what they heard and how it was computed."""
        await asyncio.gather(*(self._hold(name, one) for name, one in sessions.items()))
        for line in self.log.read_text().splitlines():
            request_id, computed, num_tokens = json.loads(line)
            for name, session in sessions.items():
                if request_id == name or request_id.startswith(f"{name}-"):
                    session.chunks.append((computed, num_tokens))

    async def _hold(self, name: str, session: Session) -> None:
        async for output in self.llm.generate(
            self._input(session), self._parameters(session.tokens_out), request_id=name
        ):
            step = output.outputs[0]
            session.tokens += step.token_ids
            session.logprobs += [
                row[token].logprob for row, token in zip(step.logprobs or [], step.token_ids, strict=True)
            ]

    def _input(self, session: Session) -> Any:
        from vllm.engine.protocol import StreamingInput

        if len(session.turns) == 1:
            return {"prompt_token_ids": list(session.turns[0])}

        async def turns() -> AsyncIterator[StreamingInput]:
            for turn in session.turns:
                yield StreamingInput(prompt={"prompt_token_ids": list(turn)})

        return turns()

    def _parameters(self, tokens_out: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=tokens_out,
            temperature=0.0,
            ignore_eos=True,
            logprobs=0,
            output_kind=RequestOutputKind.DELTA,
        )
