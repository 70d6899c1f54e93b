"""Compares answers with plain decoding: the first difference and its size. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from specinfer.openai_api.completion import Completion


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which an answer leaves plain decoding's."""

    position: int
    """Number of equal tokens, or of characters if tokens do not differ."""
    plain: str
    """Text of plain decoding's token there; empty if it has ended."""
    other: str
    """Text of the other token."""
    gap: float | None = None
    """Plain decoding's log-probability difference between the tokens, in nats.

    None without log-probabilities; below 0 if it sampled the less probable one.
    """
    unit: Literal["token", "character"] = "token"
    """Unit of the position."""


def first_divergence(plain: Completion, other: Completion) -> Divergence | None:
    """Return the first difference from plain decoding's answer, if any."""
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
    """Answers to one question, compared."""

    kind: str
    prompt: int
    """Place of the question's prompt, from 0."""
    tokens: int
    """Tokens of plain decoding's answer; 0 if the server sends none."""
    difference: Divergence | None
    """First place at which the answer with speculation differs; None: the same."""
    unrepeated: Divergence | None
    """First difference between plain decoding's two answers, without meaning for speculation."""

    def is_wrong(self, tie: float) -> bool:
        """Return whether speculation changed this answer, beyond ties of this many nats."""
        difference = self.difference
        if difference is None or self.is_excused:
            return False
        return difference.gap is None or not abs(difference.gap) <= tie  # also if it is no number

    @property
    def is_excused(self) -> bool:
        """True if plain decoding itself differs there or before."""
        difference, drifts = self.difference, self.unrepeated
        if difference is None or drifts is None:
            return False
        return drifts.unit == difference.unit and drifts.position <= difference.position


def exit_code(compared: Sequence[Compared], tie: float) -> int:
    """Return 1 for changed answers, 3 if plain decoding never repeats."""
    if any(one.is_wrong(tie) for one in compared):
        return 1
    return 3 if all(one.is_excused for one in compared) else 0
