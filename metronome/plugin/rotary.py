"""How a model rotates its keys, read from the rotary modules it has built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from metronome_kernels import reference

from metronome.plugin import compat


@dataclass(frozen=True)
class Rotation:
    """How a model rotates keys: head dims `[0, 2F)` of a key turn by `inv_freq` rad a position."""

    inv_freq: torch.Tensor  # [F] float64
    is_neox_style: bool

    def same_as(self, other: "Rotation") -> bool:
        same_style = self.is_neox_style == other.is_neox_style
        return same_style and torch.equal(self.inv_freq, other.inv_freq)

    def cos_sin(self, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """shift: [K] positions -> two [K, F] float32."""
        return reference.cos_sin(shift, self.inv_freq)

    def turn(self, keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate keys [K, tokens, heads, dim] forward by cos, sin [K, F], in float32; same dtype out."""
        return reference.rotate(keys, cos[:, None, None], sin[:, None, None], self.is_neox_style)


def _plain(rope: Any) -> torch.Tensor:
    frequencies: torch.Tensor = rope._compute_inv_freq(rope.base)
    return frequencies


def _linear(rope: Any) -> torch.Tensor:
    frequencies: torch.Tensor = _plain(rope).double() / rope.scaling_factors[0]
    return frequencies


def _dynamic(rope: Any) -> torch.Tensor:
    stretch = rope.scaling_factor * rope.max_position_embeddings / rope.max_trained_positions
    return _ntk(rope, stretch - (rope.scaling_factor - 1))


def _dynamic_alpha(rope: Any) -> torch.Tensor:
    return _ntk(rope, rope.scaling_alpha)


def _ntk(rope: Any, stretch: float) -> torch.Tensor:
    base = rope.base * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    frequencies: torch.Tensor = rope._compute_inv_freq(base)
    return frequencies


def _yarn(rope: Any) -> torch.Tensor:
    frequencies: torch.Tensor = rope._compute_inv_freq(rope.scaling_factor)
    return frequencies


def _multimodal(rope: Any) -> torch.Tensor:
    return _plain(rope) if rope.scaling_factor is None else _yarn(rope)


# By exact class: a subclass may rotate in another way. Amplitudes (yarn's mscale) are in the raw
# keys already, so only frequencies matter here.
FREQUENCIES: Mapping[str, Callable[[Any], torch.Tensor]] = {
    "RotaryEmbedding": _plain,
    "Llama3RotaryEmbedding": _plain,
    "NTKScalingRotaryEmbedding": _plain,
    "LinearScalingRotaryEmbedding": _linear,
    "DynamicNTKScalingRotaryEmbedding": _dynamic,
    "DynamicNTKAlphaRotaryEmbedding": _dynamic_alpha,
    "YaRNScalingRotaryEmbedding": _yarn,
    "MRotaryEmbedding": _multimodal,
}


def rotation_of(rope: Any) -> Rotation:
    """The rotation of one rotary module; ValueError for kinds that shift is not defined for."""
    kind = type(rope).__name__
    if kind not in FREQUENCIES:
        raise ValueError(
            f"additional_config.metronome.positions='anchor': cannot rotate the sinks of {kind}; "
            f"known: {', '.join(FREQUENCIES)}. Set positions to 'keep' or sinks to 0"
        )
    frequencies = FREQUENCIES[kind](rope).to(torch.float64)
    return Rotation(frequencies, rope.is_neox_style)


def find_rotation(head_size: int, device: torch.device) -> Rotation:
    """The rotation of the layers with `head_size`; ValueError if there is none or no single one."""
    rotations: list[Rotation] = []
    for rope in compat.rotary_embeddings():
        if rope.head_size == head_size:
            rotation = rotation_of(rope)
            if not any(rotation.same_as(other) for other in rotations):
                rotations.append(rotation)
    if len(rotations) != 1:
        raise ValueError(
            f"additional_config.metronome.positions='anchor': the model has {len(rotations)} rotary "
            f"embeddings with head size {head_size}, and exactly 1 is needed to rotate the sinks. "
            "Set positions to 'keep' or sinks to 0"
        )
    return Rotation(rotations[0].inv_freq.to(device), rotations[0].is_neox_style)
