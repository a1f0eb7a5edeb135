"""What the bound cannot serve, refused while the engine starts, with the reason and the fix."""

from metronome.plugin import compat
from metronome.plugin.compat import VllmConfig
from metronome.window import OPTIONS_KEY, Bound


def check_config(config: VllmConfig) -> Bound:
    """The bound that `config` asks for; ValueError if this engine cannot keep it."""
    options = compat.options_of(config)
    assert options is not None, "called for a stock engine"
    bound = Bound.from_options(options, config.cache_config.block_size)
    for problem in (_version(), _caching(config), _length(config, bound)):
        if problem:
            raise ValueError(problem)
    return bound


def _version() -> str | None:
    version = compat.vllm_version()
    if version in compat.TESTED_VERSIONS:
        return None
    tested = ", ".join(compat.TESTED_VERSIONS)
    return f"{OPTIONS_KEY}: vLLM {version} was not tested with the bound; install vLLM {tested}"


def _caching(config: VllmConfig) -> str | None:
    if not config.cache_config.enable_prefix_caching:
        return None
    return (
        f"{OPTIONS_KEY}: a prefix-cache hit would return the window without its sinks; "
        "set enable_prefix_caching=False (--no-enable-prefix-caching)"
    )


def _length(config: VllmConfig, bound: Bound) -> str | None:
    max_model_len = config.model_config.max_model_len
    if bound.window <= max_model_len:
        return None
    return (
        f"{OPTIONS_KEY}.window={bound.window}: larger than max_model_len={max_model_len}, so it "
        f"would never bound anything; set window to {max_model_len} or less"
    )
