"""Limit the prompt tokens of a step in which requests decode. Pure.

The prompt tokens (`read`) at most double the seconds of the step:

    seconds = curve(rows + read) + context_s * context * read

`curve` are the seconds of passes after a short context, `context_s` the seconds that a token of context adds
to a row. Both are measured at start (`specinfer.verification.pass_costs`).
"""

from collections.abc import Sequence

import numpy as np

_SLOWER = 2.0
"""Factor by which the reading of prompts may slow a decoding step."""


class ReadingPace:
    """Limits the prompt tokens that a decoding step reads in addition."""

    def __init__(self, pass_seconds: Sequence[float] = (), context_s: float = 0.0) -> None:
        """Set the seconds of passes over 1, 2, ... tokens, in rising order.

        If `pass_seconds` is empty, prompt tokens are not limited.

        Args:
            context_s: seconds that a token of context adds to each row of a pass.
        """
        self._seconds, self._context_s = np.array(pass_seconds), context_s
        self._read = np.arange(1, len(pass_seconds) + 1)

    def max_tokens(self, rows: int, context: float) -> int | None:
        """Return the maximum prompt tokens of a step; None: no limit.

        The maximum is at least one.

        Args:
            rows: rows of decoding requests in the step.
            context: mean context length of the prompt tokens.
        """
        if not rows or not len(self._seconds):
            return None
        rows = min(rows, len(self._seconds))
        further = self._seconds[rows:] + self._context_s * context * self._read[: len(self._seconds) - rows]
        return max(1, int(np.searchsorted(further, _SLOWER * self._seconds[rows - 1], side="right")))
