"""Refuses messages of gateways whose lease of the verifier has ended.

A verifier serves one gateway at a time (docs/protocol.md, "Ownership"). Each lease has a higher number than all
earlier leases, and every message carries its sender's number. So a gateway that was paused while its lease ended
cannot change the caches of its successor. Senders with number 0 have no lease; they are served until the first
lease arrives.
"""

from enum import Enum


class Standing(Enum):
    """State of the lease that a message carries."""

    CURRENT = "current"
    """The latest lease."""
    NEW = "new"
    """A later lease than all before: all cached requests are obsolete."""
    STALE = "stale"
    """An earlier lease, which has ended: the message is refused."""


class Fence:
    """Remembers the highest lease number."""

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, number: int) -> Standing:
        """Return the state of a lease; lower numbers become stale."""
        if number < self.highest:
            return Standing.STALE
        if number == self.highest:
            return Standing.CURRENT
        self.highest = number
        return Standing.NEW
