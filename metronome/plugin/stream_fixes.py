"""Repairs to vLLM 0.32 without which a session that hears audio does not cost what it should.

Each is a few lines over vLLM's own code, made only where METRONOME_STREAM_FIXES=1, in every vLLM process, and says
nothing about images or videos: with those, vLLM's own code runs.

1. Models with M-RoPE (Qwen2.5-Omni, Qwen3-Omni) compute the positions of a session anew with every frame, walking over
   all audio it ever heard, and every frame sends the description of all earlier ones to the worker. A frame then costs
   more the older its session is, which would be taken for the cost of its KV cache. Audio alone has the positions
   0, 1, 2, ..., whatever the model, and audio that is computed needs no description.
2. The same function expects an end token after every audio, and takes the engine down where a frame has none.
3. MiniCPM-o inherits a table of largest items without "audio", so that its encoder cache has no room where images and
   videos are switched off.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from metronome.models import STREAM_FIXES
from metronome.plugin import compat

_repaired: list[tuple[Any, str]] = []


def register() -> None:
    """Repair this process, or take its repairs back where they are not asked for; harmless to call again."""
    while _repaired:  # for an engine that this process started before
        compat.unwrap(*_repaired.pop())
    if os.environ.get(STREAM_FIXES) != "1":
        return
    for model in compat.mrope_audio_models():
        _repair(model, "get_mrope_input_positions", _positions)
    _repair(compat.scheduler_output(), "strip_covered_mm_data", _strip)
    _repair(compat.minicpmo_info(), "get_mm_max_tokens_per_item", _largest_items)


def _repair(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    compat.wrap_once(owner, name, wrapper)
    _repaired.append((owner, name))


def _only_audio(features: Any) -> bool:
    return all(feature.modality == "audio" for feature in features)


def _positions(original: Any, model: Any, input_tokens: list[int], mm_features: Any) -> Any:
    if not _only_audio(mm_features):
        return original(model, input_tokens, mm_features)
    return compat.text_positions(len(input_tokens)), 0


def _strip(original: Any, mm_features: Any, num_computed_tokens: int, uses_mrope: bool = False) -> Any:
    return original(mm_features, num_computed_tokens, uses_mrope=uses_mrope and not _only_audio(mm_features))


def _largest_items(original: Any, info: Any, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
    sees = any(mm_counts.get(modality) for modality in ("image", "video"))
    return (original(info, seq_len, mm_counts) if sees else {}) | {"audio": info.get_max_audio_tokens()}
