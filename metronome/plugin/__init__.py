"""The KV bound as a vLLM plugin, loaded in every vLLM process through `vllm.general_plugins`.

Options travel in vLLM's own configuration:
`additional_config={"metronome": {"window": 512, "sinks": 4, "positions": "anchor"}}`.
Without them every implementation and metadata builder is vLLM's own.
"""


def register() -> None:
    """Make the bound known to this process; harmless to call again."""
    from metronome.plugin import versions

    try:
        from metronome.plugin import compat, kernel, kv_cache, stream_fixes
    except ImportError:
        # A version whose modules moved: stock engines must still start.
        complaint = versions.complaint()
        if complaint is None:
            raise
        _log_error(complaint)
        return
    compat.register_spec(kv_cache.SinkWindowSpec, kv_cache.SinkWindowManager)
    compat.register_backends("metronome.plugin.attention")
    kernel.register()
    stream_fixes.register()


def _log_error(message: str) -> None:
    import logging

    logging.getLogger("vllm.metronome").error("%s; until then it has no effect", message)
