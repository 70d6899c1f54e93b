"""Adjustments: changes of the target's logits by a request's parameters.

They come before temperature, top-k and top-p, and so before any acceptance rule: P is what is left of the
changed logits, and tree, chain and plain decoding follow the same P. They look at what was generated, so a
node's change hangs on the tokens of its path; only the nodes that a rule visits are changed.

    prompt | generated, committed | root's child, ... , node
           | `Adjustment.read`    | `path` of `Adjustment.change`

A request's adjustment is held beside its cache and reads the tokens that the cache reads, so it is rebuilt
whenever the cache is (base_len 0). A kind of adjustment is one file plus one line in `KINDS`; constraints
come behind all of them: they need masks that the engine's threads make, and may end the text.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.constraints.masks import RequestMasks
from specinfer.verification.adjustments.constrained import Constrained
from specinfer.verification.adjustments.repetition import Repetition
from specinfer.verification.jobs import VerifyJob

Float32 = NDArray[np.float32]
KINDS = ("specinfer.verification.adjustments.biases:biases_of",)
"""Functions (job, vocabulary's size) -> the job's adjustment of this kind, or None."""


class Adjustment(Protocol):
    """One kind of change to one request's logits."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read generated tokens that are committed now: the next ones, in order."""

    def change(self, row: Float32, path: Sequence[int]) -> None:
        """Change in place the logits [V] behind the committed tokens and those of a path.

        -infinity forbids a token. Paths come in any order; what `change` learns of one must be undone.
        """


class RequestAdjustment:
    """All adjustments of a request."""

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
        """Change the logits [V] behind a path in place.

        Raises:
            ConstraintError, MaskLateError: see `Constrained.change`.
        """
        if self._repetition is not None:
            self._repetition.change(row, path)
        for part in self._parts:
            part.change(row, path)

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the end of the constrained text; None if it goes on."""
        return None if self._constrained is None else self._constrained.end(tokens)


def generated_of(prompt_len: int, position: int, tokens: Sequence[int]) -> Sequence[int]:
    """Return the generated ones of context tokens from a position on."""
    return tokens[max(0, prompt_len - position) :]


def adjustment_of(
    job: VerifyJob, vocab_size: int, masks: RequestMasks | None = None
) -> RequestAdjustment | None:
    """Return a request's adjustments from its first job; None if it has none. `masks`: of its constraint.

    Raises:
        InvalidInputError: naming the field and its value.
    """
    parts = [part for kind in KINDS if (part := _find(kind)(job, vocab_size)) is not None]
    constrained = None if masks is None else Constrained(masks)
    repetition = Repetition(job.sampling, vocab_size) if job.sampling.repeats else None
    if not parts and constrained is None and repetition is None:
        return None
    return RequestAdjustment(job.prompt_len, parts, constrained, repetition)


def _find(kind: str) -> Callable[[VerifyJob, int], Adjustment | None]:
    module, function = kind.split(":")
    found: Callable[[VerifyJob, int], Adjustment | None] = getattr(import_module(module), function)
    return found
