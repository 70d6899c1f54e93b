"""Index of prompt prefixes that a verifier has read lately: requests that share one are cheaper there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

_MOST_BLOCKS = 16384
"""Remembered blocks; at 16 tokens each about as many tokens as caches hold."""


class PrefixIndex:
    """Hashes of prompts, block by block."""

    def __init__(self, block_tokens: int, most_blocks: int = _MOST_BLOCKS) -> None:
        self._block, self._most = block_tokens, most_blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def note(self, tokens: Sequence[int]) -> None:
        """Note a prompt that the verifier reads."""
        for key in self._keys(tokens):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def shared(self, tokens: Sequence[int]) -> int:
        """Return how many tokens at the beginning it has probably read."""
        blocks = 0
        for key in self._keys(tokens):
            if key not in self._known:
                break
            blocks += 1
        return blocks * self._block

    def _keys(self, tokens: Sequence[int]) -> Iterator[int]:
        key = 0
        for start in range(0, len(tokens) - self._block + 1, self._block):
            key = hash((key, tuple(tokens[start : start + self._block])))
            yield key
