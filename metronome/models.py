"""What a model needs to be served as periodic sessions."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

BACKENDS = ("vllm", "moshi_duplex")
WEIGHTS = ("real", "tiny")
STREAM_FIXES = "METRONOME_STREAM_FIXES"  # environment: "1" turns on metronome.plugin.stream_fixes


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput:
    """How a model hears audio itself: a frame is `placeholder`, in which the engine puts the audio's positions.

    The placeholder ends with the model's end-of-audio token: without one vLLM 0.32 loses the whole engine on
    Qwen3-Omni. `wrap_tokens` are the positions of a frame that hold no audio, `wrap_tokens_per_second` those that come
    once more with every second a frame has begun.
    """

    placeholder: str
    wrap_tokens: int
    wrap_tokens_per_second: int = 0
    min_frame_ms: int  # a shorter frame has no position of its own
    sample_rate_hz: int = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One interaction model as a load on the engine.

    `tokens_per_second` is the codec's rate: input positions per second of audio. `tokens_out` is what a frame's turn
    may answer with; a turn is shorter where the model ends it: with an end-of-sequence token, unless `ignore_eos`, or,
    if `stop_at_audio`, with a token of the codec, by which it expects the user to speak on. `kv_bytes_per_token`
    belongs to the real model, all layers, in bfloat16. `audio`: the model hears samples; None: it is given token ids.
    """

    name: str
    checkpoint: str  # directory, or hub id
    revision: str | None = None  # of a hub id
    weights: str  # "real", or "tiny": the architecture with random weights, right for systems questions only
    tokens_per_second: float
    tokens_out: int
    kv_bytes_per_token: int
    period_ms: int = 1000  # what a frame of this model usually is, and when its answer is due
    deadline_ms: int = 1000
    audio: AudioInput | None = None
    backend: str = "vllm"
    dtype: str | None = None  # None: bfloat16 where the hardware multiplies it, else float32
    temperature: float = 0.8
    ignore_eos: bool = True
    stop_at_audio: bool = False
    first_audio_token: int = 0  # codec ids are mapped to [first_audio_token, + num_audio_tokens)
    num_audio_tokens: int = 1024
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)  # further options of vLLM that this model needs

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"model.weights={self.weights!r}: must be one of {', '.join(WEIGHTS)}")
        if self.backend not in BACKENDS:
            raise ValueError(f"model.backend={self.backend!r}: must be one of {', '.join(BACKENDS)}")
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
        """Input tokens per frame, those around the audio included.

        Raises ValueError where the period does not hold a whole number of codec tokens, or is too short to hear.
        """
        return self.audio_tokens(period_ms) + self.wrap_tokens(period_ms)

    def audio_tokens(self, period_ms: int) -> int:
        """Of these, what holds audio."""
        if self.audio and period_ms < self.audio.min_frame_ms:
            raise ValueError(
                f"workload.period_ms={period_ms}: {self.name} hears nothing in frames below "
                f"{self.audio.min_frame_ms} ms; lengthen it"
            )
        exact = self.tokens_per_second * period_ms / 1000
        if exact < 1 or abs(exact - round(exact)) > 1e-9:
            raise ValueError(
                f"workload.period_ms={period_ms}: holds {exact:g} tokens of {self.name}'s codec at "
                f"{self.tokens_per_second:g} per second; set a multiple of {self._step_ms} ms"
            )
        return round(exact)

    def wrap_tokens(self, period_ms: int) -> int:
        """Of these, what holds none."""
        if self.audio is None:
            return 0
        return self.audio.wrap_tokens + self.audio.wrap_tokens_per_second * -(-period_ms // 1000)

    @property
    def _step_ms(self) -> int:
        """Periods of whole milliseconds that hold whole tokens are multiples of it."""
        return (Fraction(self.tokens_per_second).limit_denominator(1000) / 1000).denominator
