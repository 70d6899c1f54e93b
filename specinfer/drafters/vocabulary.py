"""Draft vocabulary of a trimmed head, with least-recently-used replacement."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from specinfer.model.weights.config_files import load_config
from specinfer.text.tokenizer import tokenizer_facts

_SMALL = 1.5
"""Minimum ratio of vocabulary to draft vocabulary for trimming a head."""


def drafted_tokens(directory: Path, max_count: int) -> tuple[int, ...]:
    """Return the tokens that a whole model drafts, ascending; empty for all.

    A tokenizer's first merges are those of the most frequent pairs, so its lowest ids are its most frequent tokens.
    Added tokens, which end answers and mark calls, are drafted as well.

    Args:
        directory: directory of the model.
        max_count: maximum number of tokens to draft; 0: all.
    """
    size = load_config(directory).vocab_size
    if not max_count or size <= _SMALL * max_count:
        return ()
    added = {token for token in tokenizer_facts(directory).added_ids if token < size}
    frequent = [token for token in range(max_count) if token not in added][: max(max_count - len(added), 0)]
    return tuple(sorted({*frequent, *added}))


class TrafficVocabulary:
    """Assigns the rows of a trimmed head to tokens, in LRU order."""

    def __init__(self, token_ids: Sequence[int], pinned: Iterable[int] = ()) -> None:
        """Assign row i to `token_ids[i]`; `pinned` tokens are never replaced."""
        self._pinned = frozenset(pinned)
        rows = {token: row for row, token in enumerate(token_ids) if token not in self._pinned}
        self._rows = OrderedDict((token, rows[token]) for token in sorted(rows, reverse=True))
        """Row by token, the least recently used token first."""
        self.missing: dict[int, None] = {}
        """Used tokens without a row, the oldest first."""

    def note(self, tokens: Iterable[int]) -> None:
        """Mark tokens of a text as recently used."""
        for token in tokens:
            if token in self._rows:
                self._rows.move_to_end(token)
            elif self._rows and token not in self._pinned:
                self.missing[token] = None

    def swap(self) -> dict[int, int]:
        """Give the rows of the least recently used tokens to missing tokens.

        Returns:
            new token by changed row.
        """
        changed = {}
        for token in list(self.missing)[-len(self._rows) :]:
            _, row = self._rows.popitem(last=False)
            self._rows[token], changed[row] = row, token
        self.missing.clear()
        return changed
