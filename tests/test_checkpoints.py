import pytest

from experiments import checkpoints
from metronome.models import AudioInput, ModelProfile

AUDIO = AudioInput(placeholder="x", wrap_tokens=2, min_frame_ms=80)
FILES = ("config.json", "tokenizer.json", "model.safetensors", "preprocessor_config.json")


def profile(checkpoint, **changes):
    values = {"name": "omni", "weights": "tiny", "tokens_per_second": 25, "tokens_out": 4, "kv_bytes_per_token": 1}
    return ModelProfile(checkpoint=str(checkpoint), **(values | {"audio": AUDIO} | changes))


def fill(folder, *without):
    for name in FILES:
        if name not in without:
            (folder / name).write_text("{}")


def test_a_whole_checkpoint_is_taken(tmp_path):
    fill(tmp_path)
    checkpoints.check(profile(tmp_path))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_model_and_the_fix(tmp_path, name):
    fill(tmp_path, name)
    told = name.replace("model.safetensors", r"\*.safetensors or \*.bin")
    with pytest.raises(ValueError, match=f"model.checkpoint={tmp_path}: omni lacks {told}.*make setup"):
        checkpoints.check(profile(tmp_path))


def test_an_empty_file_is_a_missing_one(tmp_path):
    fill(tmp_path)
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(ValueError, match="omni lacks .*safetensors"):
        checkpoints.check(profile(tmp_path))


def test_a_model_that_hears_nothing_needs_no_preprocessor(tmp_path):
    fill(tmp_path, "preprocessor_config.json")
    checkpoints.check(profile(tmp_path, audio=None))


def test_no_checkpoint_at_all_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint of omni there; build it: make setup"):
        checkpoints.check(profile(tmp_path / "nowhere"))


def test_a_hub_id_that_is_not_here_is_refused_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=r"model.checkpoint=org/model: omni is not in .*hf download org/model --rev.* abc.*tiny"
    ):
        checkpoints.check(profile("org/model", weights="real", revision="abc"))
