"""Forbids tokens that cannot lead to a text that the request's constraint describes.

    logit(x) := -infinity  unless x may follow the generated tokens

Where the text is complete and nothing may follow, nothing is changed: what is chosen there is cut off
(`Constrained.end`), so that a model without an end-of-sequence token ends all the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.constraints.masks import RequestMasks


class Constrained:
    """The constraint of one request."""

    def __init__(self, masks: RequestMasks) -> None:
        self.masks = masks

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        self.masks.read(tokens)

    def change(self, row: NDArray[np.float32], path: Sequence[int]) -> None:
        """Change the logits [V] behind a path in place.

        Raises:
            MaskLateError: if its mask is not made in time.
            ConstraintError: if the constraint is too complex or too dear, or was not followed.
        """
        allowed = self.masks.mask(path)
        if allowed is not None:
            row[~allowed] = -np.inf

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the one that completes the text; None if none does.

        These tokens may follow, and nothing may follow the one that completes it.
        """
        return self.masks.end(tokens)
