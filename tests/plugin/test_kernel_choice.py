"""Who gets our kernel: engines whose options ask for it, on a GPU, where nothing contradicts it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from metronome_kernels import reference
from pool import spec_for
from test_refuse import config_with, text_config
from test_table import batch_metadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import metronome.plugin
from metronome.plugin import compat, kernel, kernel_backend
from metronome.plugin.refuse import check_config
from metronome.plugin.rotary import Rotation
from metronome.window import Bound

OPTIONS = {"window": 64, "sinks": 4, "kernel": "sink_window"}


@pytest.fixture(autouse=True)
def registered() -> None:
    metronome.plugin.register()


def asking(backend: AttentionBackendEnum | None = None, cache_dtype: str = "auto", **options: Any) -> SimpleNamespace:
    return SimpleNamespace(
        attention_config=SimpleNamespace(backend=backend),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        additional_config={"metronome": OPTIONS | options},
    )


def choose(config: SimpleNamespace) -> AttentionBackendEnum | None:
    kernel._choose(lambda config: None, config)
    return config.attention_config.backend


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "is_cuda", lambda: True)


def test_without_a_gpu_the_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metronome\.kernel='sink_window': needs a CUDA GPU; leave the option out"):
        choose(asking())


def test_engines_that_ask_get_the_kernel(on_cuda: None) -> None:
    assert choose(asking()) is AttentionBackendEnum.CUSTOM
    assert choose(asking(AttentionBackendEnum.CUSTOM)) is AttentionBackendEnum.CUSTOM
    assert AttentionBackendEnum.CUSTOM.get_path() == kernel.BACKEND_PATH


def test_engines_that_do_not_ask_keep_what_they_have(on_cuda: None) -> None:
    assert choose(asking(kernel=None)) is None
    assert choose(asking(AttentionBackendEnum.FLASH_ATTN, kernel=None)) is AttentionBackendEnum.FLASH_ATTN
    stock = asking()
    stock.additional_config = {}
    assert choose(stock) is None


def test_another_backend_contradicts_the_kernel(on_cuda: None) -> None:
    with pytest.raises(ValueError, match="attention_backend=FLASH_ATTN asks for another; leave one out"):
        choose(asking(AttentionBackendEnum.FLASH_ATTN))


def test_a_quantized_cache_is_refused(on_cuda: None) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype='fp8'; set it to 'auto'"):
        choose(asking(cache_dtype="fp8"))


def test_another_plugins_backend_is_not_taken_for_ours(on_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "custom_backend_path", lambda: "other.Backend")
    with pytest.raises(ValueError, match=r"another plugin has registered other\.Backend as backend CUSTOM"):
        choose(asking())


def test_vllm_asks_the_plugin_about_every_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compat.current_platform.check_and_update_config.metronome_wraps is not None


def test_an_unknown_kernel_is_named() -> None:
    with pytest.raises(ValueError, match=r"metronome\.kernel='flash': must be one of sink_window, or left out"):
        Bound.from_options(OPTIONS | {"kernel": "flash"}, 32)
    assert Bound.from_options(OPTIONS, 32) == Bound(window=64, sinks=4, block_size=32)


def test_mixed_layers_refuse_the_kernel() -> None:
    config = config_with(
        OPTIONS | {"positions": "keep"}, **text_config(layer_types=["sliding_attention", "full_attention"])
    )
    with pytest.raises(ValueError, match="serves one kind only; leave kernel out"):
        check_config(config)


def test_the_backend_without_a_bound_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "current_config", lambda: config_with(None))
    with pytest.raises(ValueError, match=r"attention backend CUSTOM is Metronome's kernel"):
        kernel_backend.CUSTOM.get_impl_cls()
    monkeypatch.setattr(compat, "current_config", lambda: config_with(OPTIONS))
    assert kernel_backend.CUSTOM.get_impl_cls() is kernel_backend.KernelImpl
    assert kernel_backend.CUSTOM.get_builder_cls() is kernel_backend.KernelBuilder


def test_the_backend_says_what_it_can_do() -> None:
    backend: Any = kernel_backend.CUSTOM
    assert backend.supports_head_size(64) and backend.supports_head_size(256)
    assert not backend.supports_head_size(512)
    assert backend.supports_attn_type("decoder") and not backend.supports_attn_type("encoder_only")
    assert backend.supports_kv_cache_dtype("auto") and not backend.supports_kv_cache_dtype("fp8")
    assert not backend.supports_sink() and not backend.supports_mm_prefix()


@pytest.mark.parametrize("model_has", [{"alibi_slopes": [1.0]}, {"logits_soft_cap": 30.0}, {"sinks": torch.zeros(1)}])
def test_models_that_score_in_other_ways_are_refused(model_has: dict[str, Any]) -> None:
    plain = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
    with pytest.raises(ValueError, match=r"metronome\.kernel: the model has .*; leave the option out"):
        kernel_backend.KernelImpl(1, 64, 1.0, 1, **(plain | model_has))


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> kernel_backend.KernelBuilder:
    rotation = Rotation(torch.tensor([1.0, 0.01]), is_neox_style=False)
    monkeypatch.setattr(compat, "attention_layers", lambda *_: [SimpleNamespace(head_size=8, sliding_window=None)])
    monkeypatch.setattr(kernel_backend, "find_rotation", lambda *_: rotation)
    spec = spec_for(Bound(window=20, sinks=4, block_size=8))
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=24))
    return kernel_backend.KernelBuilder(spec, ["layer"], config, torch.device("cpu"))


def test_each_query_gets_the_angles_of_its_own_gap(builder: kernel_backend.KernelBuilder) -> None:
    step = builder.build(0, batch_metadata([(300, 3), (10, 2), (22, 4)], 8))
    gaps = [300 + 1 - 24, 301 + 1 - 24, 302 + 1 - 24, 0, 0, 0, 0, 1, 2]
    cos, sin = reference.cos_sin(torch.tensor(gaps), torch.tensor([1.0, 0.01]))
    assert torch.equal(step.turn[0], cos) and torch.equal(step.turn[1], sin)
    assert not step.is_neox
    assert (step.max_query_len, step.num_actual_tokens) == (4, 9)


def test_angles_keep_their_address_for_cuda_graphs(builder: kernel_backend.KernelBuilder) -> None:
    steps = [builder.build(0, batch_metadata([(computed, 1)], 8)) for computed in (3, 300)]
    assert len({step.turn[0].data_ptr() for step in steps}) == 1
    assert not torch.equal(steps[1].turn[1], torch.zeros_like(steps[1].turn[1]))
