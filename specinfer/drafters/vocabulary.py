"""Draft vocabulary of a trimmed head, with least-recently-used replacement."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


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
