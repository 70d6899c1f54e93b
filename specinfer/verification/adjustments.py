"""Adjustments: changes of the target's logits by a request's parameters.

They come before temperature, top-k and top-p, and so before any acceptance rule: P results from the changed
logits, and tree, chain and plain decoding follow the same P. They depend on generated tokens, so a node's
change depends on the tokens of its path; only the nodes that a rule visits are changed.

    prompt | generated, committed | root's child, ... , node
           | `Adjustment.read`    | `path` of `Adjustment.change`

A request's adjustment is stored with its cache and reads the same tokens, so it is rebuilt
whenever the cache is (base_len 0). The constraint comes last: it needs masks that the engine's threads make,
and may end the text.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specinfer.constraints.masks import RequestMasks
from specinfer.sampling import Sampling
from specinfer.verification.jobs import VerifyJob

Float32: TypeAlias = NDArray[np.float32]


class Adjustment(Protocol):
    """One kind of change to one request's logits."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read generated tokens that are committed now: the next ones, in order."""

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change in place the logits [V] after committed tokens and path.

        -infinity forbids a token. Paths come in any order, so `change` must undo its state of a path.
        """


class Biases:
    """Biases and penalties, as OpenAI's API defines them.

        logit(x) := logit(x) + bias(x) - presence_penalty [c(x) > 0] - frequency_penalty c(x)

    c(x) counts how often x was generated, tokens on the path included, those of the prompt not.
    Invariant: `_added[x]` is a function of the count of x alone, computed again at each change. So it has the
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
        """Change the logits [V] after a path in place."""
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
    """The repetition penalty of CTRL (Keskar et al., 2019), as in vLLM.

        logit(x) := logit(x) / r  if it is positive, else logit(x) r,  for every x of prompt, answer and path
    Invariant: a changed logit is a function of the logit and of whether its token occurs. So it has the same
    bits whether the token was committed or lies on a path, and greedy speculation stays exact.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._penalty = np.float32(sampling.repetition_penalty)
        self._occurs = np.zeros(vocab_size, bool)

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens of the prompt and of the answer."""
        self._occurs[list(tokens)] = True

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] after a path in place."""
        new = [token for token in path if not self._occurs[token]]
        self._occurs[new] = True
        logits = row[self._occurs]
        row[self._occurs] = np.where(logits > 0, logits / self._penalty, logits * self._penalty)
        self._occurs[new] = False


class Constrained:
    """Forbids tokens that break the request's constraint.

        logit(x) := -infinity  unless x may follow the generated tokens

    If the text is complete and nothing may follow, nothing is changed: later tokens are cut off (`end`), so
    that a model without an end-of-sequence token ends, too.
    """

    def __init__(self, masks: RequestMasks) -> None:
        self.masks = masks

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        self.masks.read(tokens)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] after a path in place.

        Raises:
            MaskLateError: if its mask is not made in time.
            ConstraintError: if the constraint is too complex or too expensive, or was not followed.
        """
        allowed = self.masks.mask(path)
        if allowed is not None:
            row[~allowed] = -np.inf

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the text's end; None if it continues.

        All tokens may follow, and none may follow the one that completes the text.
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
        """Join the parts; `prompt_len` context tokens were not generated.

        `repetition` comes first and reads the prompt, too; `constrained` is the last part.
        """
        self._prompt_len, self._constrained = prompt_len, constrained
        self._repetition = repetition
        self.masks = constrained.masks if constrained is not None else None
        """Masks of its constraint; None without one."""
        self._parts = [*parts, constrained] if constrained is not None else parts

    def read(self, position: int, tokens: Sequence[int]) -> None:
        """Read context tokens that were committed from a position on."""
        if self._repetition is not None:
            self._repetition.read(tokens)
        generated = self.generated(position, tokens)
        if generated:
            for part in self._parts:
                part.read(generated)

    def generated(self, position: int, tokens: Sequence[int]) -> Sequence[int]:
        """Return the generated ones of context tokens from a position on."""
        return generated_of(self._prompt_len, position, tokens)

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change the logits [V] after a path in place.

        Raises:
            ConstraintError, MaskLateError: see `Constrained.change`.
        """
        if self._repetition is not None:
            self._repetition.change(row, path)
        for part in self._parts:
            part.change(row, path)

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the constrained text's end, if any."""
        return None if self._constrained is None else self._constrained.end(tokens)


def generated_of(prompt_len: int, position: int, tokens: Sequence[int]) -> Sequence[int]:
    """Return the generated ones of context tokens from a position on."""
    return tokens[max(0, prompt_len - position) :]


def adjustment_of(
    job: VerifyJob, vocab_size: int, masks: RequestMasks | None = None
) -> RequestAdjustment | None:
    """Return a request's adjustments from its first job, if any.

    Raises:
        InvalidInputError: for an invalid field.
    """
    job.sampling.check_tokens(vocab_size)
    parts = [Biases(job.sampling, vocab_size)] if job.sampling.adjusts else []
    constrained = None if masks is None else Constrained(masks)
    repetition = Repetition(job.sampling, vocab_size) if job.sampling.repeats else None
    if not parts and constrained is None and repetition is None:
        return None
    return RequestAdjustment(job.prompt_len, parts, constrained, repetition)
