"""Whole texts on a vLLM engine: how likely the model finds them, and how it goes on."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from metronome.backends.vllm_engine import VllmEngine


class VllmScorer:
    """Scores and continues token sequences under the engine's KV bound, chunk by chunk as it prefills."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._num_requests = 0

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._engine.llm.get_tokenizer().encode(text)
        return ids

    async def score(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Natural log-likelihood of ids[1:], each given all kept tokens before it, [len(ids) - 1]."""
        params = SamplingParams(
            max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt = TokensPrompt(prompt_token_ids=list(ids))
        async for out in self._engine.llm.generate(prompt, params, request_id=self._request_id()):
            found = out.prompt_logprobs
        return np.array([entry[token].logprob for entry, token in zip(found[1:], ids[1:], strict=True)])

    async def go_on(self, ids: Sequence[int], num_tokens: int, temperature: float) -> list[int]:
        """`num_tokens` sampled after `ids`, past any end-of-sequence token.

        The engine's seed is the only one: a request with its own kills vLLM 0.32's CPU worker ("CPU Generator does not
        use offset").
        """
        params = SamplingParams(
            max_tokens=num_tokens,
            min_tokens=num_tokens,
            ignore_eos=True,
            temperature=temperature,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=list(ids))
        async for out in self._engine.llm.generate(prompt, params, request_id=self._request_id()):
            sampled = list(out.outputs[0].token_ids)
        return sampled

    def _request_id(self) -> str:
        self._num_requests += 1
        return f"text-{self._num_requests}"
