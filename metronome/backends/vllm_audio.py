"""Frames of audio as vLLM takes them: the model's own feature extraction, beside the event loop."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from vllm.inputs import TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM

from metronome.models import ModelProfile


class Ear:
    """Makes engine inputs of audio frames for one model on one engine.

    Features are extracted in the renderer's own threads: done in `generate()`, as vLLM does with raw prompts, they
    would hold up every other session's frames.
    """

    def __init__(self, profile: ModelProfile, llm: AsyncLLM) -> None:
        assert profile.audio is not None
        self._profile, self._audio, self._llm = profile, profile.audio, llm
        self.placeholder_ids = list(llm.get_tokenizer().encode(self._audio.placeholder, add_special_tokens=False))

    async def hear(self, samples: NDArray[np.float32]) -> tuple[Any, int]:
        """The engine's input, and how many positions it takes.

        Raises ValueError where the frame is none that the model can hear; only the frame's own session is hurt.
        """
        self._check(samples)
        prompt = TokensPrompt(prompt_token_ids=self.placeholder_ids, multi_modal_data={"audio": samples})
        (rendered,) = await self._llm.renderer.render_cmpl_async([prompt])
        return rendered, len(cast("list[int]", rendered["prompt_token_ids"]))

    def _check(self, samples: NDArray[np.float32]) -> None:
        name, rate_hz, least_ms = self._profile.name, self._audio.sample_rate_hz, self._audio.min_frame_ms
        if samples.ndim != 1 or samples.dtype != np.float32 or not np.isfinite(samples).all():
            raise ValueError(
                f"{name}: a frame is finite float32 samples of one channel, not {samples.dtype} of shape "
                f"{samples.shape}; convert it (metronome.audio.read does)"
            )
        length_ms = 1000 * len(samples) / rate_hz
        if length_ms < least_ms:
            raise ValueError(
                f"{name}: a frame of {length_ms:g} ms has no position of its own; send {least_ms} ms or more "
                f"({least_ms * rate_hz // 1000} samples at {rate_hz} Hz)"
            )

    def silence(self) -> NDArray[np.float32]:
        """One frame of the model's usual length in which next to nothing is heard."""
        num_samples = self._profile.period_ms * self._audio.sample_rate_hz // 1000
        return np.random.default_rng(0).normal(0, 1e-3, num_samples).astype(np.float32)

    def expect(self, num_in: int) -> None:
        """Hold the profile to what the engine made of a frame of silence()."""
        planned = self._profile.tokens_in(self._profile.period_ms)
        if num_in != planned:
            raise RuntimeError(
                f"{self._profile.name}: a frame of {self._profile.period_ms} ms takes {num_in} positions on this "
                f"engine, its profile says {planned}; correct tokens_per_second or audio.wrap_tokens"
            )
