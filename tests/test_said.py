"""What is said on the lines of a point."""

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from experiments.said import make_turns

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def run_of(*overrides):
    with initialize_config_dir(str(ROOT / "experiments" / "conf"), version_base="1.3"):
        return schema.load(compose("run", overrides=["target=none", "workload.duration_s=6", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "num_samples"),
    [(["model=qwen2_5_omni"], 16_000), (["model=minicpm_o_4_5", "workload.period_ms=200"], 3_200),
     (["model=moshi_duplex", "kv=own"], 1_920)],
)  # fmt: skip
def test_models_that_hear_are_given_one_period_of_sound_at_their_rate(overrides, num_samples):
    run = run_of(*overrides)
    turns = make_turns(run, 2)
    assert [len(line) for line in turns] == [run.workload.num_frames] * 2
    assert {(turn.dtype, turn.shape) for line in turns for turn in line} == {(np.dtype("float32"), (num_samples,))}
    assert np.abs(np.concatenate(turns[0])).max() > 0.05 and not np.array_equal(turns[0][0], turns[1][0])


def test_frames_follow_each_other_without_a_gap():
    """The same call, cut more finely, is the same sound."""
    long, short = (
        np.concatenate(make_turns(run_of("model=qwen2_5_omni", f"workload.period_ms={ms}"), 1)[0]) for ms in (2000, 200)
    )
    assert np.array_equal(long, short)


def test_models_that_do_not_hear_are_given_the_tokens_of_a_codec():
    run = run_of("model=smollm2")
    ids = np.array(make_turns(run, 2))
    assert ids.shape == (2, 6, 25)
    assert ids.min() >= run.model.first_audio_token
    assert ids.max() < run.model.first_audio_token + run.model.num_audio_tokens


def test_larger_frames_hold_as_many_tokens_as_is_asked():
    assert np.array(make_turns(run_of("model=tiny", "workload=video"), 1)).shape == (1, 6, 100)


def text_run(*overrides):
    return run_of("model=tiny", "workload=agent", "workload.text_dir=data/text", "workload.duration_s=40", *overrides)


def test_agents_read_real_text_each_from_another_place():
    run = text_run()
    lines = make_turns(run, 3)
    assert [[len(turn) for turn in line] for line in lines] == [[64] * run.workload.num_frames] * 3
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.model.checkpoint)
    words = tokenizer.decode([token for turn in lines[0] for token in turn][5:60])
    text = "\n".join(path.read_text() for path in sorted(Path("data/text").glob("*.txt")))
    assert words in text
    assert len({tuple(line[0]) for line in lines}) == 3


def test_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="workload.tokens_in=4000: .*the texts hold"):
        make_turns(text_run("workload.tokens_in=4000"), 1)
