"""What a model needs to be served as periodic sessions."""

from dataclasses import dataclass, field
from typing import Any

WEIGHTS = ("real", "tiny")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One interaction model as a load on the engine.

    `tokens_per_second` is the codec's rate: input positions per second of audio. `tokens_out` is what a frame's turn
    may answer with; a turn is shorter where the model ends it: with an end-of-sequence token, unless `ignore_eos`, or,
    if `stop_at_audio`, with a token of the codec, by which it expects the user to speak on. `kv_bytes_per_token`
    belongs to the real model, all layers, in bfloat16.
    """

    name: str
    checkpoint: str  # directory, or hub id
    weights: str  # "real", or "tiny": the architecture with random weights, right for systems questions only
    tokens_per_second: float
    tokens_out: int
    kv_bytes_per_token: int
    dtype: str | None = None  # None: bfloat16 where the hardware multiplies it, else float32
    temperature: float = 0.8
    ignore_eos: bool = True
    stop_at_audio: bool = False
    first_audio_token: int = 0  # codec ids are mapped to [first_audio_token, + num_audio_tokens)
    num_audio_tokens: int = 1024
    hf_overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"model.weights={self.weights!r}: must be one of {', '.join(WEIGHTS)}")
        if self.tokens_out < 1:
            raise ValueError(f"model.tokens_out={self.tokens_out}: must be 1 or more tokens per frame")
        if self.tokens_per_second <= 0:
            raise ValueError(f"model.tokens_per_second={self.tokens_per_second}: must be above 0")
        if self.num_audio_tokens < 1:
            raise ValueError(f"model.num_audio_tokens={self.num_audio_tokens}: must be 1 or more")

    @property
    def turns_vary(self) -> bool:
        """Whether the model decides how long a turn is."""
        return self.stop_at_audio or not self.ignore_eos

    def tokens_in(self, period_ms: int) -> int:
        """Input tokens per frame.

        Raises ValueError where the period does not hold a whole number of codec tokens.
        """
        exact = self.tokens_per_second * period_ms / 1000
        if exact < 1 or abs(exact - round(exact)) > 1e-9:
            step = 1000 / self.tokens_per_second
            raise ValueError(
                f"workload.period_ms={period_ms}: holds {exact:g} tokens of {self.name}'s codec at "
                f"{self.tokens_per_second:g} per second; set a multiple of {step:g} ms"
            )
        return round(exact)

    def growth_per_frame(self, period_ms: int) -> int:
        """Cache tokens one frame adds. A turn's last sampled token is discarded by the engine, never cached."""
        return self.tokens_in(period_ms) + self.tokens_out - 1
