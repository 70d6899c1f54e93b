"""Define values in messages: statuses, finish reasons, log-probabilities."""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple


class EntryStatus(IntEnum):
    """Outcome of one request in a step, numbered as `specinfer.v1.EntryStatus`."""

    OK = 1
    """The entry was processed."""
    RESYNC = 2
    """The cache does not have exactly `base_len` tokens; send the whole context."""
    ERROR = 3
    """The entry is invalid or failed; a retry would fail, too."""
    EXHAUSTED = 4
    """Temporary refusal; a retry may succeed.

    Reasons are a full cache, a constraint still being compiled, or a fault in the same pass.
    """
    INVALID = 5
    """The request cannot be processed, for example a too complex constraint."""


class FinishReason(StrEnum):
    """Reason for the end of generation, named as `specinfer.v1.FinishReason`."""

    UNSPECIFIED = "unspecified"
    """Not finished, or a reason unknown to this version."""
    LENGTH = "length"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    ERROR = "error"
    DEADLINE = "deadline"
    CONSTRAINT = "constraint"


class LogprobRow(NamedTuple):
    """Log-probabilities of a generated token and of alternatives, in nats."""

    chosen: float
    top: Sequence[tuple[int, float]] = ()
    """Pairs (token id, log-probability) of alternatives, most probable first."""
