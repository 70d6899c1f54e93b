"""A constraint as a table of the tokens that may follow each path."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Allowed = Callable[[tuple[int, ...]], Sequence[int]]
"""Function from a path to the tokens that may follow, in ascending order; no tokens: the text is complete."""


class TableMatcher:
    """A `specinfer.tree.TokenMatcher` that asks a function `Allowed`."""

    def __init__(self, vocab_size: int, allowed: Allowed) -> None:
        self._vocab_size, self._allowed = vocab_size, allowed
        self.path: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        return not self._allowed(self.path)

    def try_read(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            if token not in self._allowed(self.path):
                return count
            self.path = (*self.path, token)
        return len(tokens)

    def take_back(self, count: int) -> None:
        self.path = self.path[: len(self.path) - count]

    def mask(self) -> NDArray[np.bool_]:
        allowed = np.zeros(self._vocab_size, np.bool_)
        allowed[list(self._allowed(self.path))] = True
        return allowed

    def forced(self) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < 8 and len(only := self._allowed((*self.path, *tokens))) == 1:
            tokens.append(only[0])
        return tokens
