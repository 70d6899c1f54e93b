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
        """Reason why the constraint cannot be followed any more; later calls raise it again."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        try:
            self._matcher.read(tokens)
        except ConstraintError as error:
            self._wrong = error

    def change(self, row: NDArray[np.float32], path: Sequence[int]) -> None:
        """Change the logits [V] behind a path in place.

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
        """Count the tokens up to the one that completes the text; None if none does.

        These tokens may follow, and nothing may follow the one that completes it.
        """
        read = 0
        while not self._matcher.finished and read < len(tokens):
            self._matcher.read([tokens[read]])
            read += 1
        end = read if self._matcher.finished else None
        self._matcher.take_back(read)
        return end
