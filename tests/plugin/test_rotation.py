"""Rotating a key by a shift equals computing it at the shifted position, for vLLM's own modules."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from metronome.plugin import compat
from metronome.plugin.rotary import FREQUENCIES, find_rotation, rotation_of

HEAD_SIZE, NUM_HEADS, MAX_POSITION = 64, 2, 4096
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
SECTIONS = {"mrope_section": [16, 8, 8]}

SUPPORTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial": {"partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "mixed ntk": {"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.6},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 1024},
    "dynamic alpha": {"rope_type": "dynamic", "alpha": 8.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, amplitude given": YARN | {"attention_factor": 1.7},
    "m-rope": {"rope_type": "default"} | SECTIONS,
    "m-rope interleaved": {"rope_type": "default", "mrope_interleaved": True} | SECTIONS,
    "m-rope yarn": YARN | SECTIONS,
}
REFUSED: dict[str, dict[str, Any]] = {
    "Phi3LongRoPEScaledRotaryEmbedding": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 32,
        "long_factor": [2.0] * 32,
        "original_max_position_embeddings": 1024,
    },
    "DeepseekScalingRotaryEmbedding": YARN | {"rope_type": "deepseek_yarn"},
    "Gemma4RotaryEmbedding": {"rope_type": "proportional"},
    "FourierRotaryEmbedding": {
        "use_fope": True,
        "num_key_value_heads": 1,
        "num_inv_freq": 16,
        "fope_sep_head": True,
        "fope_init_factor": 0.1,
    },
}


@pytest.fixture(autouse=True)
def vllm_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("vllm.model_executor.layers.rotary_embedding._ROPE_DICT", {})
    config = VllmConfig()
    config.model_config = SimpleNamespace(max_model_len=MAX_POSITION)
    with set_current_vllm_config(config):
        yield


def rope_for(parameters: dict[str, Any], is_neox_style: bool = True, head_size: int = 64) -> Any:
    parameters = {"rope_theta": 10_000.0} | parameters
    return get_rope(head_size, MAX_POSITION, is_neox_style, parameters, dtype=torch.float32)


def at(rope: Any, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The keys as the model caches them: rotated by its own module."""
    if "MRotary" in type(rope).__name__:
        positions = positions.expand(3, -1)
    flat = keys.flatten(1)
    return rope.forward_native(positions, flat, flat.clone())[1].view_as(keys)


@pytest.mark.parametrize("is_neox_style", [True, False], ids=["neox", "gpt-j"])
@pytest.mark.parametrize("parameters", SUPPORTED.values(), ids=SUPPORTED)
def test_shift_equals_recomputing(parameters: dict[str, Any], is_neox_style: bool) -> None:
    rope = rope_for(parameters, is_neox_style)
    rotation = rotation_of(rope)
    positions = torch.arange(8)
    keys = torch.randn(8, NUM_HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    raw = at(rope, keys, positions)
    shifts = torch.tensor([1, 32, 1000, 4000])
    turned = rotation.turn(raw.expand(4, -1, -1, -1), *rotation.cos_sin(shifts))
    for shift, got in zip(shifts, turned, strict=True):
        # vLLM rounds each angle to float32: 4,000 rad may be off by 2e-4.
        torch.testing.assert_close(got, at(rope, keys, positions + shift), atol=2e-3, rtol=0)


def test_every_supported_kind_is_covered() -> None:
    assert {type(rope_for(each)).__name__ for each in SUPPORTED.values()} == set(FREQUENCIES)


def test_a_thousand_shifts_leave_no_drift() -> None:
    rotation = rotation_of(rope_for({}))
    raw = torch.randn(1, 4, NUM_HEADS, HEAD_SIZE)
    size = raw.norm(dim=-1)
    for shift in range(32, 32 * 1000, 32):
        turned = rotation.turn(raw, *rotation.cos_sin(torch.tensor([shift])))
        assert (turned.norm(dim=-1) - size).abs().max() < 1e-5
    back = rotation.turn(turned, *rotation.cos_sin(torch.tensor([-shift])))
    torch.testing.assert_close(back, raw, atol=1e-5, rtol=0)


def test_bfloat16_keys_are_turned_in_float32() -> None:
    rotation = rotation_of(rope_for({}))
    raw = torch.randn(1, 4, NUM_HEADS, HEAD_SIZE).bfloat16()
    cos, sin = rotation.cos_sin(torch.tensor([320]))
    exact = rotation.turn(raw.float(), cos, sin)
    assert torch.equal(rotation.turn(raw, cos, sin), exact.bfloat16())


@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    rope = rope_for(REFUSED[kind])
    assert type(rope).__name__ == kind
    with pytest.raises(ValueError, match=rf"cannot rotate the sinks of {kind}; .*'keep'"):
        rotation_of(rope)


def test_finds_the_one_rotation_of_a_head_size() -> None:
    wanted, _other_size = rope_for({}), rope_for({"rope_theta": 5e5}, head_size=32)
    same_again = rope_for({"max_trained_positions": 7})
    assert same_again is not wanted
    found = find_rotation(HEAD_SIZE, torch.device("cpu"))
    assert found.same_as(rotation_of(wanted))


def test_refuses_a_model_without_rotary_embeddings() -> None:
    assert compat.rotary_embeddings() == []
    with pytest.raises(ValueError, match="has 0 rotary embeddings with head size 64"):
        find_rotation(HEAD_SIZE, torch.device("cpu"))


def test_refuses_to_guess_between_two_rotations() -> None:
    rope_for({}), rope_for({"rope_theta": 5e5})
    with pytest.raises(ValueError, match="has 2 rotary embeddings with head size 64"):
        find_rotation(HEAD_SIZE, torch.device("cpu"))
