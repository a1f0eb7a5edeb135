import pytest

from experiments import profiles


def model(**changes):
    by_weights = {"real": {"checkpoint": "org/real", "revision": "abc"}, "tiny": {"checkpoint": ".cache/m"}}
    return {"weights": None, "checkpoint": None, "revision": None, "by_weights": by_weights} | changes


def settle(gpu, monkeypatch, **changes):
    monkeypatch.setattr(profiles, "has_gpu", lambda: gpu)
    values = {"model": model(**changes)}
    profiles.settle(values)
    assert "by_weights" not in values["model"]
    return values["model"]


def test_a_gpu_loads_the_real_weights(monkeypatch):
    assert settle(True, monkeypatch) == {"weights": "real", "checkpoint": "org/real", "revision": "abc"}


def test_a_cpu_loads_the_tiny_ones(monkeypatch):
    assert settle(False, monkeypatch) == {"weights": "tiny", "checkpoint": ".cache/m", "revision": None}


@pytest.mark.parametrize("gpu", [True, False])
def test_what_is_said_counts(monkeypatch, gpu):
    assert settle(gpu, monkeypatch, weights="real")["checkpoint"] == "org/real"
    assert settle(gpu, monkeypatch, checkpoint="/my/own")["checkpoint"] == "/my/own"


def test_every_case_is_settled(monkeypatch):
    monkeypatch.setattr(profiles, "has_gpu", lambda: False)
    values = {"model": {"weights": "real"}, "generality": {"cases": {"a": {"model": model()}, "b": {"model": model()}}}}
    profiles.settle(values)
    assert [case["model"]["weights"] for case in values["generality"]["cases"].values()] == ["tiny", "tiny"]


def test_other_weights_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="model.weights='fake': must be one of real, tiny"):
        settle(False, monkeypatch, weights="fake")
