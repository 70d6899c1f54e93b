"""Biases and penalties, as OpenAI's API defines them.

    logit(x) := logit(x) + bias(x) - presence_penalty [c(x) > 0] - frequency_penalty c(x)

c(x) counts how often x was generated, tokens on the path included, those of the prompt not.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from specinfer.sampling import Sampling
from specinfer.verification.adjustments import Float32
from specinfer.verification.jobs import VerifyJob


class Biases:
    """Additions to the logits of one request.

    Invariant: `_added[x]` is a function of the count of x alone, computed anew at each change. So it has the
    same bits whether x was committed or lies on a path, and greedy speculation stays exact.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._bias = dict(sampling.logit_bias)
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._counts: Counter[int] = Counter()
        self._added: Float32 = np.zeros(vocab_size, np.float32)
        for token in self._bias:
            self._count(token, 0)

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        for token in tokens:
            self._count(token, 1)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] behind a path in place."""
        for token in path:
            self._count(token, 1)
        row += self._added
        for token in path:
            self._count(token, -1)

    def _count(self, token: int, times: int) -> None:
        self._counts[token] = count = self._counts[token] + times
        penalty = self._presence * (count > 0) + self._frequency * count
        self._added[token] = self._bias.get(token, 0.0) - penalty


def biases_of(job: VerifyJob, vocab_size: int) -> Biases | None:
    """Return the biases of a job; None if it has none.

    Raises:
        InvalidInputError: if a token is not in the vocabulary.
    """
    job.sampling.check_tokens(vocab_size)
    return Biases(job.sampling, vocab_size) if job.sampling.adjusts else None
