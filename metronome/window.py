"""The bound as pure arithmetic: which tokens and blocks of a session's KV cache stay.

A session keeps its first `sinks` tokens and its `window` most recent ones, both rounded out to
whole blocks. The window is taken at the start of each chunk, so every query in the chunk sees at
least `window` tokens up to and including itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POSITIONS = ("keep", "anchor")
KERNELS = ("sink_window",)
OPTIONS_KEY = "additional_config.metronome"


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A per-session KV bound in tokens.

    positions: "keep" leaves sink keys at the positions they were computed at; "anchor" rotates
    them forward as the window slides, so that they stay right before it.
    """

    window: int
    sinks: int = 0
    positions: str = "anchor"
    block_size: int = 32

    def __post_init__(self) -> None:
        for name in ("window", "sinks"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"kv.{name}={value!r}: must be a whole number of tokens")
        if self.block_size < 1:
            raise ValueError(f"engine.block_size={self.block_size}: must be at least 1 token")
        if self.window < self.block_size:
            raise ValueError(
                f"kv.window={self.window}: smaller than one block of {self.block_size} tokens; "
                f"set kv.window to {self.block_size} or more"
            )
        if self.sinks < 0:
            raise ValueError(f"kv.sinks={self.sinks}: must be 0 or more tokens")
        if self.positions not in POSITIONS:
            allowed = ", ".join(POSITIONS)
            raise ValueError(f"kv.positions={self.positions!r}: must be one of {allowed}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any], block_size: int) -> "Bound":
        """Build from `additional_config["metronome"]`; keys it does not know are an error."""
        known = {"window", "sinks", "positions", "report_dir", "kernel"}
        for key in options:
            if key not in known:
                allowed = ", ".join(sorted(known))
                raise ValueError(f"{OPTIONS_KEY}.{key}: unknown option; known: {allowed}")
        if "window" not in options:
            raise ValueError(f"{OPTIONS_KEY}.window is missing: set it in tokens, e.g. 512")
        kernel = options.get("kernel")
        if kernel is not None and kernel not in KERNELS:
            raise ValueError(f"{OPTIONS_KEY}.kernel={kernel!r}: must be one of {', '.join(KERNELS)}, or left out")
        bound = {key: value for key, value in options.items() if key not in ("report_dir", "kernel")}
        try:
            return cls(block_size=block_size, **bound)
        except ValueError as error:
            raise ValueError(str(error).replace("kv.", f"{OPTIONS_KEY}.")) from None

    @property
    def num_sink_blocks(self) -> int:
        return blocks_for(self.sinks, self.block_size)

    @property
    def anchored(self) -> bool:
        """Whether sink keys move: without sinks there is nothing to move."""
        return self.positions == "anchor" and self.sinks > 0

    def first_window_block(self, num_computed_tokens: int) -> int:
        """Index of the first block the window keeps when `num_computed_tokens` are cached."""
        return max(num_computed_tokens - self.window + 1, 0) // self.block_size

    def gap_blocks(self, num_computed_tokens: int) -> int:
        """Blocks missing between the sinks and the window."""
        return max(self.first_window_block(num_computed_tokens) - self.num_sink_blocks, 0)

    def held_tokens(self, num_computed_tokens: int) -> int:
        """Tokens kept of `num_computed_tokens` once the window has been applied."""
        return num_computed_tokens - self.gap_blocks(num_computed_tokens) * self.block_size

    def kept_positions(self, num_computed_tokens: int) -> list[int]:
        """Original positions of the kept tokens, ascending."""
        sinks_end = min(self.num_sink_blocks * self.block_size, num_computed_tokens)
        start = max(self.first_window_block(num_computed_tokens) * self.block_size, sinks_end)
        return [*range(sinks_end), *range(start, num_computed_tokens)]

    def num_blocks(self, num_computed_tokens: int, num_tokens: int) -> int:
        """Blocks held while a chunk takes a session from `num_computed_tokens` to `num_tokens`."""
        return blocks_for(num_tokens, self.block_size) - self.gap_blocks(num_computed_tokens)

    def max_blocks(self, max_chunk_tokens: int) -> int:
        """The plateau: blocks a session can hold, with chunks of at most `max_chunk_tokens`."""
        window_blocks = blocks_for(self.window - 1 + max_chunk_tokens, self.block_size) + 1
        return self.num_sink_blocks + window_blocks
