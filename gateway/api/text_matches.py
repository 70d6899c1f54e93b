"""How much the texts of running requests repeat themselves, read from the tokens that are committed."""

from collections.abc import Callable, Mapping, Sequence

from specinfer.planning.repeats import Repeats


class TextMatches:
    """Of the requests that are asked about; others are forgotten."""

    def __init__(self, tokens_of: Callable[[str], Sequence[int]]) -> None:
        self._tokens_of = tokens_of
        self._repeats: dict[str, Repeats] = {}

    def __call__(self, contexts: Mapping[str, int]) -> list[int]:
        """For requests with the tokens of their contexts, what `Repeats.match` says."""
        known = self._repeats
        self._repeats = {name: known.get(name) or Repeats() for name in contexts}
        return [self._repeats[name].match(self._tokens_of(name), length) for name, length in contexts.items()]
