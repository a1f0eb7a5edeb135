import pytest

from metronome.models import ModelProfile


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
