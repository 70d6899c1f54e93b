"""Forbids tokens that cannot lead to a text that the request's constraint describes.

    logit(x) := -infinity  unless x may follow the generated tokens

Where the text is complete and nothing may follow, nothing is changed: what is chosen there is cut off
(`Constrained.end`), so that a model without an end-of-sequence token ends all the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.constraints.matcher import Matcher
from specinfer.errors import ConstraintError


class Constrained:
    """The constraint of one request."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._wrong: ConstraintError | None = None
        """Why it cannot be followed any more; whoever asks next is told."""

    def read(self, tokens: Sequence[int]) -> None:
        """See `Adjustment.read`."""
        try:
            self._matcher.read(tokens)
        except ConstraintError as error:
            self._wrong = error

    def change(self, row: NDArray[np.float32], path: Sequence[int]) -> None:
        """See `Adjustment.change`.

        Raises:
            ConstraintError: if the constraint is too complex, or was not followed.
        """
        if self._wrong is not None:
            raise self._wrong
        self._matcher.read(path)
        if not self._matcher.finished:
            allowed = self._matcher.mask()
            if not allowed.any():
                raise ConstraintError("the constraint needs text of which the model has no tokens")
            row[~allowed] = -np.inf
        self._matcher.take_back(len(path))

    def end(self, tokens: Sequence[int]) -> int | None:
        """After how many of these tokens, which may follow, the text is complete and nothing may follow; None
        if it is not."""
        read = 0
        while not self._matcher.finished and read < len(tokens):
            self._matcher.read([tokens[read]])
            read += 1
        end = read if self._matcher.finished else None
        self._matcher.take_back(read)
        return end
