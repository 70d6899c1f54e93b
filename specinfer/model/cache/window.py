"""Window of a cache over a request's context (StreamingLLM, arXiv 2309.17453)."""

from dataclasses import dataclass

from specinfer.errors import SettingError
from specinfer.model.cache.sequence import BLOCK_TOKENS, blocks_for

SINKS = 4
"""First tokens of a request that a windowed cache never drops."""


@dataclass(frozen=True, slots=True)
class KVWindow:
    """Part of a request's context that a windowed cache keeps. Lossy."""

    tokens: int
    """Context tokens kept, sinks included; up to a block more."""
    sinks: int
    """First tokens that are never dropped, rounded up to whole blocks."""
    max_positions: int
    """Rotary positions that the model knows."""

    def __post_init__(self) -> None:
        if self.tokens < self.sink_blocks * BLOCK_TOKENS + BLOCK_TOKENS:
            least = (self.sink_blocks + 1) * BLOCK_TOKENS
            raise SettingError("kv_window", self.tokens, f"must be at least {least} with {self.sinks} sinks")

    @property
    def sink_blocks(self) -> int:
        """Blocks that are never dropped."""
        return blocks_for(self.sinks)
