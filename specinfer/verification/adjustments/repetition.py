"""The repetition penalty of CTRL (Keskar and others, 2019), as `transformers` and vLLM have it.

logit(x) := logit(x) / r  if it is positive, else logit(x) r,  for every x of prompt, answer and path
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.sampling import Sampling


class Repetition:
    """Change of the logits of all tokens that were read.

    Invariant: a changed logit is a function of the logit and of whether its token occurs. So it has the same
    bits whether the token was committed or lies on a path, and greedy speculation stays exact.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._penalty = np.float32(sampling.repetition_penalty)
        self._occurs = np.zeros(vocab_size, bool)

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens of the prompt and of the answer."""
        self._occurs[list(tokens)] = True

    def change(self, row: NDArray[np.float32], path: Sequence[int]) -> None:
        """Change the logits [V] behind a path in place."""
        new = [token for token in path if not self._occurs[token]]
        self._occurs[new] = True
        found = row[self._occurs]
        row[self._occurs] = np.where(found > 0, found / self._penalty, found * self._penalty)
        self._occurs[new] = False
