"""Adjusts the target's logits by a request's biases, penalties and constraint.

They come before temperature, top-k, top-p and the acceptance rule: P follows from the adjusted logits, so trees,
chains and plain decoding have the same P. They depend on generated tokens, so a node's adjustment depends on the
tokens of its path. Only nodes that a rule visits are adjusted.

    prompt | generated, committed | root's child, ... , node
           | `Adjustment.read`    | `path` of `Adjustment.change`

A request's adjustments are stored with its cache, and rebuilt with it if the request starts over (base_len 0).
The constraint is the last: it waits for masks that the mask threads make, and may end the text.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specinfer.request.sampling import Sampling
from specinfer.text.constraints.masks import RequestMasks
from specinfer.verification.jobs import VerifyJob

Float32: TypeAlias = NDArray[np.float32]


class Adjustment(Protocol):
    """One kind of change to a request's logits."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read generated tokens in order, when a step has committed them."""

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] after the committed tokens and `path` in place.

        -infinity forbids a token. Paths come in any order, so `change` must leave no state of a path.
        """


class Biases:
    """Adds biases and penalties, as OpenAI's API defines them.

        logit(x) := logit(x) + bias(x) - presence_penalty [c(x) > 0] - frequency_penalty c(x)

    c(x) counts x among generated tokens and the path, without the prompt.
    Invariant: `_added[x]` is recomputed from c(x) alone at each change. So the sum has the same bits whether x
    was committed or is on the path, and greedy speculation stays exact.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._bias = dict(sampling.logit_bias)
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._counts: Counter[int] = Counter()
        self._added: Float32 = np.zeros(vocab_size, np.float32)
        for token in self._bias:
            self._count(token, 0)

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._count(token, 1)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        for token in path:
            self._count(token, 1)
        row += self._added
        for token in path:
            self._count(token, -1)

    def _count(self, token: int, times: int) -> None:
        self._counts[token] = count = self._counts[token] + times
        penalty = self._presence * (count > 0) + self._frequency * count
        self._added[token] = self._bias.get(token, 0.0) - penalty


class Repetition:
    """Applies the repetition penalty r of CTRL (Keskar et al., 2019).

        logit(x) := logit(x) / r  if positive, else logit(x) r,  for every x of prompt, answer and path
    Invariant: a changed logit depends only on the logit and on whether x occurs. So it has the same bits whether
    x was committed or is on the path, and greedy speculation stays exact.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._penalty = np.float32(sampling.repetition_penalty)
        self._occurs = np.zeros(vocab_size, bool)

    def read(self, tokens: Sequence[int]) -> None:
        self._occurs[list(tokens)] = True

    def change(self, row: Float32, path: Sequence[int]) -> None:
        new = [token for token in path if not self._occurs[token]]
        self._occurs[new] = True
        logits = row[self._occurs]
        row[self._occurs] = np.where(logits > 0, logits / self._penalty, logits * self._penalty)
        self._occurs[new] = False


class Constrained:
    """Forbids tokens that break the request's constraint.

        logit(x) := -infinity  unless x may follow the generated tokens

    If the text is complete and no token may follow, no logit is changed: `end` cuts later tokens, so that a
    model without an end-of-sequence token ends, too.
    """

    def __init__(self, masks: RequestMasks) -> None:
        self.masks = masks

    def read(self, tokens: Sequence[int]) -> None:
        self.masks.read(tokens)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Forbid tokens after the committed tokens and `path`."""
        allowed = self.masks.mask(path)
        if allowed is not None:
            row[~allowed] = -np.inf

    def end(self, tokens: Sequence[int]) -> int | None:
        """Return how many of these tokens complete the text; None: not complete.

        The constraint must allow the tokens. 0: the text was complete before them.
        """
        return self.masks.end(tokens)


class RequestAdjustment:
    def __init__(
        self,
        prompt_len: int,
        parts: Sequence[Adjustment],
        constrained: Constrained | None = None,
        repetition: Repetition | None = None,
    ) -> None:
        """Combine a request's adjustments.

        Args:
            prompt_len: number of context tokens that were not generated.
            constrained: the constraint, applied last.
            repetition: the repetition penalty, applied first; it also reads the prompt.
        """
        self._prompt_len, self._constrained = prompt_len, constrained
        self._repetition = repetition
        self.masks = constrained.masks if constrained is not None else None
        """Masks of the constraint; None if the request has no constraint."""
        self._parts = [*parts, constrained] if constrained is not None else parts

    def read(self, position: int, tokens: Sequence[int]) -> None:
        """Read committed context tokens; `position` is that of the first token."""
        if self._repetition is not None:
            self._repetition.read(tokens)
        generated = self.generated(position, tokens)
        if generated:
            for part in self._parts:
                part.read(generated)

    def generated(self, position: int, tokens: Sequence[int]) -> Sequence[int]:
        """Return the generated tokens among context tokens from `position` on."""
        return generated_of(self._prompt_len, position, tokens)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] after the committed tokens and `path` in place."""
        if self._repetition is not None:
            self._repetition.change(row, path)
        for part in self._parts:
            part.change(row, path)

    def end(self, tokens: Sequence[int]) -> int | None:
        """Return how many of `tokens` complete the text; None: not complete."""
        return None if self._constrained is None else self._constrained.end(tokens)


def generated_of(prompt_len: int, position: int, tokens: Sequence[int]) -> Sequence[int]:
    """Return the generated tokens among context tokens from `position` on."""
    return tokens[max(0, prompt_len - position) :]


def adjustment_of(
    job: VerifyJob, vocab_size: int, masks: RequestMasks | None = None
) -> RequestAdjustment | None:
    """Return a request's adjustments, from its first job; None: there are none."""
    job.sampling.check_tokens(vocab_size)
    parts = [Biases(job.sampling, vocab_size)] if job.sampling.adjusts else []
    constrained = None if masks is None else Constrained(masks)
    repetition = Repetition(job.sampling, vocab_size) if job.sampling.repeats else None
    if not parts and constrained is None and repetition is None:
        return None
    return RequestAdjustment(job.prompt_len, parts, constrained, repetition)
