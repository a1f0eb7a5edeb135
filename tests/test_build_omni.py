"""The tiny stand-ins of the interaction models: same bytes from the same seed, and the published structure."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

ROOT = Path(__file__).parents[1]
DOOR = ROOT / "scripts" / "build_omni.py"
NAMES = ["qwen2_5_omni", "qwen3_omni_30b", "minicpm_o_4_5", "moshi", "moshi_duplex"]


def run(*args: str | Path) -> str:
    result = subprocess.run([sys.executable, DOOR, *args], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def config(name: str) -> dict:
    return json.loads((ROOT / ".cache" / name / "config.json").read_text())


def text(name: str) -> dict:
    found = config(name)
    return found["thinker_config"]["text_config"] if "thinker_config" in found else found


def weights(name: str) -> dict[str, list[int]]:
    with safe_open(ROOT / ".cache" / name / "model.safetensors", "pt") as file:
        return {key: file.get_slice(key).get_shape() for key in file.keys()}


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_files(tmp_path):
    (tmp_path / "moshi.partial").mkdir()
    (tmp_path / "moshi.partial" / "half").touch()  # what a killed build left
    run("--models", "moshi", "--out", tmp_path)
    assert hashes(tmp_path / "moshi") == hashes(ROOT / ".cache" / "moshi")
    assert [path.name for path in tmp_path.iterdir()] == ["moshi"]


def test_what_is_there_is_left_alone(tmp_path):
    for name in NAMES:
        (tmp_path / name).mkdir()
    assert run("--out", tmp_path) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    assert not any(path for name in NAMES for path in (tmp_path / name).iterdir())


@pytest.mark.parametrize(
    ("name", "queries_per_key"), [("qwen2_5_omni", 7), ("qwen3_omni_30b", 8), ("minicpm_o_4_5", 4), ("moshi", 1)]
)
def test_attention_is_shaped_as_the_published_one(name, queries_per_key):
    found = text(name)
    heads, keys = found["num_attention_heads"], found["num_key_value_heads"]
    head_dim = found.get("head_dim") or found["hidden_size"] // heads
    assert (heads / keys, head_dim) == (queries_per_key, 128)
    shapes = [shape for key, shape in weights(name).items() if ".self_attn.k_proj" in key and key.endswith("weight")]
    assert [keys * 128, found["hidden_size"]] in shapes


@pytest.mark.parametrize(("name", "sections"), [("qwen2_5_omni", [16, 24, 24]), ("qwen3_omni_30b", [24, 20, 20])])
def test_mrope_sections_fill_half_a_head(name, sections):
    assert text(name)["rope_parameters"]["mrope_section"] == sections
    assert sum(sections) == 128 / 2


def test_qwen3_omni_routes_as_the_published_one():
    found = text("qwen3_omni_30b")
    assert (found["num_experts"], found["num_experts_per_tok"]) == (128, 8)
    # one matrix per expert, as in the published files, not transformers' stack
    assert "thinker.model.layers.1.mlp.experts.127.down_proj.weight" in weights("qwen3_omni_30b")
    assert not [key for key in weights("qwen3_omni_30b") if "gate_up_proj" in key]


def test_moshi_windows():
    assert (config("moshi")["sliding_window"], config("moshi_duplex")["sliding_window"]) == (3000, 250)


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("qwen2_5_omni", {"thinker"}),
        ("qwen3_omni_30b", {"thinker"}),
        ("minicpm_o_4_5", {"llm", "apm", "audio_projection_layer"}),
    ],
)
def test_weights_have_the_published_prefixes(name, prefixes):
    assert {key.split(".")[0] for key in weights(name)} == prefixes


def test_moshi_duplex_hears():
    """Different audio must get different codes, or the user's stream would be a constant."""
    import torch
    from transformers import MoshiForConditionalGeneration

    model = MoshiForConditionalGeneration.from_pretrained(ROOT / ".cache" / "moshi_duplex").eval()
    noise = torch.randn(1, 1, 4 * 1920, generator=torch.Generator().manual_seed(0)) * 0.05
    with torch.no_grad():
        codes = model.audio_encoder.encode(noise, num_quantizers=8).audio_codes
        silent = model.audio_encoder.encode(0 * noise, num_quantizers=8).audio_codes
    assert codes.shape == (1, 8, 4)
    assert len(codes.unique()) > 4
    assert (codes != silent).float().mean() > 0.5
