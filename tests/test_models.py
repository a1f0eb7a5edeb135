import pytest

from metronome.models import AudioInput, ModelProfile


def profile(**changes):
    values = {"name": "m", "checkpoint": "x", "weights": "real", "tokens_per_second": 25, "tokens_out": 4}
    return ModelProfile(**(values | {"kv_bytes_per_token": 1} | changes))


@pytest.mark.parametrize(("period_ms", "tokens_in"), [(40, 1), (80, 2), (1000, 25), (2000, 50)])
def test_a_period_holds_whole_codec_tokens(period_ms, tokens_in):
    assert profile().tokens_in(period_ms) == tokens_in


@pytest.mark.parametrize("period_ms", [20, 50, 1010])
def test_a_period_that_cuts_a_token_is_refused_with_the_step(period_ms):
    with pytest.raises(ValueError, match=f"workload.period_ms={period_ms}.*set a multiple of 40 ms"):
        profile().tokens_in(period_ms)


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"weights": "fake"}, "model.weights"), ({"tokens_out": 0}, "model.tokens_out"),
     ({"tokens_per_second": 0}, "model.tokens_per_second")],
)  # fmt: skip
def test_impossible_profiles_are_refused_by_name(changes, key):
    with pytest.raises(ValueError, match=key):
        profile(**changes)


HEARS = AudioInput(placeholder="<a>", wrap_tokens=2, wrap_tokens_per_second=2, min_frame_ms=100)


@pytest.mark.parametrize(("period_ms", "tokens_in"), [(200, 2 + 2 + 2), (1000, 10 + 2 + 2), (2000, 20 + 2 + 4)])
def test_positions_around_the_audio_count(period_ms, tokens_in):
    assert profile(tokens_per_second=10, audio=HEARS).tokens_in(period_ms) == tokens_in


def test_a_frame_too_short_to_hear_is_refused_with_the_model_and_the_least():
    with pytest.raises(ValueError, match="workload.period_ms=80: m hears nothing in frames below 100 ms"):
        profile(tokens_per_second=12.5, audio=HEARS).tokens_in(80)


@pytest.mark.parametrize(("rate", "step_ms"), [(25, 40), (12.5, 80), (13, 1000), (10, 100)])
def test_the_step_between_periods_is_in_whole_milliseconds(rate, step_ms):
    with pytest.raises(ValueError, match=f"set a multiple of {step_ms} ms"):
        profile(tokens_per_second=rate).tokens_in(1001)
    assert profile(tokens_per_second=rate).tokens_in(step_ms) >= 1
