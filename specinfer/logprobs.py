"""Log-probabilities of a generated token, as the verifier tells them. Pure data."""

from collections.abc import Sequence
from typing import NamedTuple


class LogprobRow(NamedTuple):
    """At the place of one generated token."""

    chosen: float
    top: Sequence[tuple[int, float]] = ()
    """(Token, its log-probability) of the most probable ones, most probable first, if asked for."""
