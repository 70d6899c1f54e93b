"""Status of a batch's entry, reason for an ending and row of log-probabilities: the same on both sides of the wire."""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple


class EntryStatus(IntEnum):
    """Outcome of one entry of a batch; the numbers are those of `specinfer.v1.EntryStatus`."""

    OK = 1
    """Served."""
    RESYNC = 2
    """The service does not hold exactly base_len tokens."""
    ERROR = 3
    """The entry is wrong or failed; it must not be sent again as it is."""
    EXHAUSTED = 4
    """Temporary refusal: no space, something is being prepared, or a fault that is not its own. It may come
    again."""
    INVALID = 5
    """The request asks for what cannot be done, such as a constraint that is too complex: its caller's fault."""


class FinishReason(StrEnum):
    """Reason for the end of generation, in the words of `specinfer.v1.FinishReason`."""

    UNSPECIFIED = "unspecified"
    """A reason that this version does not know; no request ends with it."""
    LENGTH = "length"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    ERROR = "error"
    DEADLINE = "deadline"
    CONSTRAINT = "constraint"


class LogprobRow(NamedTuple):
    """Log-probabilities at the place of one generated token, as the verifier returns them."""

    chosen: float
    top: Sequence[tuple[int, float]] = ()
    """(Token, its log-probability) of the most probable ones, most probable first, if requested."""
