"""The prompt tokens of a step in which requests decode. Pure.

A step takes at most twice as long with them:

    seconds = curve(rows + read) + context_s * context * read

`curve` are the seconds of passes after a short context, and `context_s` are those that a token of context adds to a
row. Both are measured at start (`specinfer.verification.pass_costs`): a slower machine changes all of it alike.
"""

from collections.abc import Sequence

import numpy as np

_SLOWER = 2.0
"""Factor by which the reading of prompts may slow a decoding step."""


class ReadingPace:
    """The prompt tokens that a step may read in addition."""

    def __init__(self, pass_seconds: Sequence[float] = (), context_s: float = 0.0) -> None:
        """Take the rising seconds of passes by their tokens.

        Without any there is no limit.

        Args:
            context_s: seconds that a token of context adds to each row of a pass.
        """
        self._seconds, self._context_s = np.array(pass_seconds), context_s
        self._read = np.arange(1, len(pass_seconds) + 1)

    def max_tokens(self, rows: int, context: float) -> int | None:
        """Return the maximum prompt tokens after `context` tokens, if limited.

        They are at least one, and double the seconds of a step at most.
        """
        if not rows or not len(self._seconds):
            return None
        rows = min(rows, len(self._seconds))
        further = self._seconds[rows:] + self._context_s * context * self._read[: len(self._seconds) - rows]
        return max(1, int(np.searchsorted(further, _SLOWER * self._seconds[rows - 1], side="right")))
