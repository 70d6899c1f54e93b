"""The fence of a verifier: the highest lease number seen. Pure.

A verifier serves one gateway at a time (docs/protocol.md, "Ownership"). Each lease has a higher number than
all before it, and every message carries its sender's number. So a gateway that was paused while its lease
ended cannot reach the caches of its successor. Number 0 means no lease: it is served until a gateway sends
one.
"""

from enum import Enum


class Standing(Enum):
    """Standing of a message's sender by its lease number."""

    CURRENT = "current"
    """The number of the latest lease."""
    NEW = "new"
    """A later lease than all before: all cached requests are obsolete."""
    STALE = "stale"
    """Its lease is over: nothing is done for it."""


class Fence:
    """Remembers the latest lease."""

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, number: int) -> Standing:
        """Return a number's standing. Lower ones are stale from now on."""
        if number < self.highest:
            return Standing.STALE
        if number == self.highest:
            return Standing.CURRENT
        self.highest = number
        return Standing.NEW
