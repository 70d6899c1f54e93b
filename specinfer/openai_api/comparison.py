"""Find the first difference of an answer from plain decoding's answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from specinfer.openai_api.completion import Completion


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference of an answer from plain decoding's answer."""

    position: int
    """Number of equal tokens (or characters, see `unit`) before the difference."""
    plain: str
    """Plain decoding's token; empty if its answer has ended."""
    other: str
    """The other answer's token; empty if the answer has ended."""
    gap: float | None = None
    """Difference of the tokens' log-probabilities under plain decoding, in nats.

    None without log-probabilities; negative if plain decoding sampled the less probable token.
    """
    unit: Literal["token", "character"] = "token"
    """Unit of `position`; "character" if the tokens do not differ."""


def first_divergence(plain: Completion, other: Completion) -> Divergence | None:
    """Return the first difference from plain decoding's answer; None if equal."""
    if plain.tokens and other.tokens:
        for position, (token, its) in enumerate(zip_longest(plain.tokens, other.tokens, fillvalue="")):
            if token != its:
                return Divergence(position, token, its, _gap(plain, position, token, its))
    for position, (token, its) in enumerate(zip_longest(plain.text, other.text, fillvalue="")):
        if token != its:
            token, its = plain.text[position:][:20], other.text[position:][:20]
            return Divergence(position, token, its, unit="character")
    return None


def _gap(plain: Completion, position: int, plain_token: str, other: str) -> float | None:
    if position >= len(plain.top):
        return None
    row = plain.top[position]
    if plain_token not in row or not row:
        return None
    if other in row:
        return row[plain_token] - row[other]
    return None


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of the answers to one question."""

    kind: str
    prompt: int
    """Index of the prompt, from 0."""
    tokens: int
    """Number of tokens of plain decoding's answer; 0 if unknown."""
    difference: Divergence | None
    """First difference of the answer with speculation; None: equal."""
    unrepeated: Divergence | None
    """First difference between plain decoding's two answers; None: equal."""

    def is_wrong(self, tie: float) -> bool:
        """Return whether the answers differ by more than a tie.

        A difference is a tie if its `gap` is at most `tie`; an unknown gap is none. An excused difference is not
        wrong.
        """
        difference = self.difference
        if difference is None or self.is_excused:
            return False
        return difference.gap is None or not abs(difference.gap) <= tie  # true for NaN, too

    @property
    def is_excused(self) -> bool:
        """True if plain decoding's own answers differ before or at `difference`."""
        difference, drifts = self.difference, self.unrepeated
        if difference is None or drifts is None:
            return False
        return drifts.unit == difference.unit and drifts.position <= difference.position


def exit_code(compared: Sequence[Compared], tie: float) -> int:
    """Return 1: an answer changed; 3: nothing is proved; else 0."""
    if any(one.is_wrong(tie) for one in compared):
        return 1
    return 3 if all(one.is_excused for one in compared) else 0
