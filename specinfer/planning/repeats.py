"""How long a stretch at a text's end has occurred in it before: where texts repeat themselves, drafts that
look things up are right, and long ones pay. Pure."""

from collections.abc import Sequence

MOST = 8
"""Tokens of a stretch that are compared."""


class Repeats:
    """Of one text that grows."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        """Two tokens in a row -> the latest place of the second, the text's last place excluded."""
        self._read = 1

    def match(self, tokens: Sequence[int], length: int) -> int:
        """Tokens, up to `MOST`, at the end of tokens[:length] that also stand at the latest earlier place of
        the last two; 0 if these are new. The length never falls between calls."""
        for place in range(self._read, length - 1):
            self._latest[tokens[place - 1], tokens[place]] = place
        self._read = max(self._read, length - 1)
        if length < 2:
            return 0
        earlier = self._latest.get((tokens[length - 2], tokens[length - 1]))
        if earlier is None:
            return 0
        most = min(MOST, earlier + 1)
        same = (tokens[earlier - back] == tokens[length - 1 - back] for back in range(most))
        return next((back for back, is_same in enumerate(same) if not is_same), most)
