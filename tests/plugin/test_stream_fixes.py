"""The repairs of vLLM for sessions of audio, as far as they need no engine."""

import inspect
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from vllm.plugins import load_general_plugins

from metronome.backends import vllm_engine
from metronome.plugin import compat, stream_fixes


def features(*modalities):
    return [SimpleNamespace(modality=modality) for modality in modalities]


@pytest.mark.parametrize("model", compat.mrope_audio_models(), ids=lambda model: model.__name__)
def test_the_positions_are_those_that_vllm_walks_to(model):
    """Three frames of 100 mel frames, each between a start and an end token."""
    count = model._compute_audio_token_count(None, 100)
    offsets = [1 + k * (count + 2) for k in range(3)]
    heard = [(offset, "audio", {"audio_feature_length": 100}) for offset in offsets]
    session = SimpleNamespace(
        iter_mm_features=lambda _: iter(heard),
        _compute_audio_token_count=partial(model._compute_audio_token_count, None),
    )
    tokens = [7] * (3 * (count + 2) + 4)
    stock = inspect.unwrap(model.get_mrope_input_positions)
    positions, delta = stock(session, tokens, features(*["audio"] * 3))
    mine, my_delta = stream_fixes._positions(stock, session, tokens, features(*["audio"] * 3))
    assert torch.equal(positions, mine) and delta == my_delta


def test_audio_stands_at_the_positions_of_text_and_nothing_is_walked_over():
    positions, delta = stream_fixes._positions(pytest.fail, None, [7] * 5, features("audio", "audio"))
    assert torch.equal(positions, torch.arange(5).repeat(3, 1)) and delta == 0


def test_pictures_are_left_to_vllm():
    def original(model, tokens, found):
        return "vLLM's", len(tokens)

    assert stream_fixes._positions(original, None, [7] * 5, features("audio", "image")) == ("vLLM's", 5)
    kept = stream_fixes._strip(lambda f, n, uses_mrope: uses_mrope, features("audio", "video"), 10, uses_mrope=True)
    assert kept is True


def test_audio_that_is_computed_needs_no_description():
    kept = stream_fixes._strip(lambda f, n, uses_mrope: uses_mrope, features("audio"), 10, uses_mrope=True)
    assert kept is False


@pytest.mark.parametrize(
    ("counts", "table"), [({"image": 0, "video": 0}, {"audio": 9}), ({"image": 1}, {"image": 4, "audio": 9})]
)
def test_the_encoder_cache_has_room_for_audio(counts, table):
    info = SimpleNamespace(get_max_audio_tokens=lambda: 9)
    assert stream_fixes._largest_items(lambda i, n, c: {"image": 4}, info, 100, counts) == table


def test_a_function_is_wrapped_once():
    owner = SimpleNamespace(f=lambda x: x)
    for _ in range(2):
        compat.wrap_once(owner, "f", lambda original, x: original(x) + 1)
    assert owner.f(1) == 2


def test_nothing_is_touched_unless_asked(monkeypatch):
    for asked in ("0", "", "1", "1", "0"):
        monkeypatch.setenv("METRONOME_STREAM_FIXES", asked)
        stream_fixes.register()
        assert repaired() == [asked == "1"] * 4


def test_each_engine_of_a_process_is_repaired_as_it_asks(monkeypatch):
    """vLLM loads plugins once per process: the first engine decided, and MiniCPM-o had no encoder cache."""
    of_model = {"checkpoint": "", "revision": None, "dtype": "float32", "hf_overrides": {}, "engine_args": {}}
    seen = []
    monkeypatch.setattr(vllm_engine, "AsyncEngineArgs", lambda **_: load_general_plugins())
    monkeypatch.setattr(vllm_engine.AsyncLLM, "from_engine_args", lambda *_, **__: seen.append(all(repaired())))
    sizes = {"num_blocks": 9, "block_size": 32, "max_model_len": 64, "max_num_seqs": 1, "max_num_batched_tokens": 64}
    for asked in (False, True, False):
        vllm_engine.VllmEngine(
            SimpleNamespace(**of_model), vllm_engine.EngineOptions(**sizes, stream_fixes=asked)
        ).start()
    assert seen == [False, True, False] and not any(repaired())


def repaired():
    """Of each of the four functions. A new vLLM that moved any of them breaks here."""
    assert len(compat.mrope_audio_models()) == 2
    functions = [
        *((model, "get_mrope_input_positions") for model in compat.mrope_audio_models()),
        (compat.scheduler_output(), "strip_covered_mm_data"),
        (compat.minicpmo_info(), "get_mm_max_tokens_per_item"),
    ]
    return [hasattr(getattr(owner, name), "metronome_wraps") for owner, name in functions]
