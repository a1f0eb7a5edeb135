"""The KV bound as a vLLM plugin, loaded in every vLLM process through `vllm.general_plugins`.

Options travel in vLLM's own configuration:
`additional_config={"metronome": {"window": 512, "sinks": 4, "positions": "anchor"}}`.
Without them every class is stock.
"""


def register() -> None:
    """Make the bound known to this process; harmless to call again."""
    from metronome.plugin import compat, kv_cache

    compat.register_spec(kv_cache.SinkWindowSpec, kv_cache.SinkWindowManager)
    for name in compat.backend_names():
        compat.register_attention(name, f"metronome.plugin.attention.{name}")
