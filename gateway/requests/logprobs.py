"""Log-probabilities of a generated token, as the verifier told them. Pure data."""

from typing import NamedTuple

MAX_TOP_LOGPROBS = 20
"""Most tokens told of beside each generated one, as in OpenAI's API."""


class TokenLogprobs(NamedTuple):
    """At the place of one generated token."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
    """(Token, its log-probability) of the most probable ones, if asked for."""
