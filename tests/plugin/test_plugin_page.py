"""docs/PLUGIN.md tells of every refusal, option and metric."""

import re
from pathlib import Path

from metronome.plugin import compat, metrics, refuse, versions
from metronome.window import Bound

PAGE = (Path(__file__).parents[2] / "docs" / "PLUGIN.md").read_text()
TOLD = {
    "_untested_version": "a vLLM version that was not tested",
    "_latent_attention": "latent attention (MLA)",
    "_recurrent": "recurrent layers",
    "_own_window": "a model whose own window is narrower",
    "_mixed_without_hybrid_manager": "mixed layers without vLLM's hybrid KV cache manager",
    "_two_way_prefix": "prefix-LM attention",
    "_prefix_caching": "enable_prefix_caching=False",
    "_speculation": "leave `speculative_config` unset",
    "_kv_transfer": "leave `kv_transfer_config`",
    "_split_batch": "`enable_dbo=False`",
    "_length": "larger than `max_model_len`",
    "_unrotated_model": "anchored sinks with ALiBi",
    "_unrotated_layers": "layers without rotary embedding",
    "_mixed_layers": "layers of two kinds",
    "_positions_in_space": "images or video with M-RoPE",
    "_mixed_layers_for_kernel": "a quantized KV cache, mixed layers",
}


def test_every_refusal_is_told():
    checks = (*refuse._CHECKS, *refuse._ANCHOR_CHECKS, *refuse._KERNEL_CHECKS)
    assert {check.__name__ for check in checks} == set(TOLD)
    assert all(phrase in PAGE for phrase in TOLD.values())
    assert all(name in PAGE for name in (*compat.CUDA_BACKENDS, *compat.CPU_BACKENDS))


def test_every_option_is_told():
    told = set(re.findall(r"(?m)^\| `(\w+)` \|", PAGE))
    assert told == {"window", "sinks", "positions", "kernel", "report_dir"}
    options = {"window": 64, "sinks": 4, "positions": "keep", "kernel": "sink_window", "report_dir": "x"}
    assert Bound.from_options(options, 32)  # and these are all that there are: others are an error
    assert all(version in PAGE for version in versions.TESTED)


def test_every_metric_is_told():
    assert all(f"`{gauge._name}`" in PAGE for gauge in metrics._gauges())
