"""Outcome of one entry of a batch, the same word on both sides of the wire."""

from enum import IntEnum


class EntryStatus(IntEnum):
    """The numbers are those of `specinfer.v1.EntryStatus`; a test compares them."""

    OK = 1
    """Served."""
    RESYNC = 2
    """The service does not hold exactly base_len tokens."""
    ERROR = 3
    """The entry is wrong or failed; it must not be sent again as it is."""
    EXHAUSTED = 4
    """Not now: no room, something is being prepared, or a fault that is not its own. It may come again."""
