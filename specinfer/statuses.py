"""Statuses, finish reasons and log-probabilities, on both sides of the wire."""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple


class EntryStatus(IntEnum):
    """Outcome of a batch's entry, with the numbers of `specinfer.v1.EntryStatus`."""

    OK = 1
    """Served."""
    RESYNC = 2
    """The service's cache does not have exactly base_len tokens."""
    ERROR = 3
    """The entry is wrong or failed; a repetition would fail, too."""
    EXHAUSTED = 4
    """Temporary refusal: it may be repeated.

    There is no space, something is being prepared, or another entry caused a fault.
    """
    INVALID = 5
    """The caller requested something impossible, such as a too complex constraint."""


class FinishReason(StrEnum):
    """Reason for the end of generation, in the words of `specinfer.v1.FinishReason`."""

    UNSPECIFIED = "unspecified"
    """A reason unknown to this version; no request ends with it."""
    LENGTH = "length"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    ERROR = "error"
    DEADLINE = "deadline"
    CONSTRAINT = "constraint"


class LogprobRow(NamedTuple):
    """Log-probabilities of a generated token and alternatives, from the verifier."""

    chosen: float
    top: Sequence[tuple[int, float]] = ()
    """(Token, log-probability) of alternatives, most probable first, if requested."""
