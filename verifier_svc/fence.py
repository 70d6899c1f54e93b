"""Lease that drives a verifier: the highest number that it has seen. Pure.

A verifier serves one gateway at a time (docs/protocol.md, "Ownership"). Its leases are numbered, every later
one higher than all before it, and every message carries the number of its sender's. So a gateway that was
paused while its lease ended cannot reach the caches of the one that holds the verifier now. Number 0 stands
for no lease: it is served as long as no gateway has sent one.
"""

from enum import Enum


class Standing(Enum):
    """Standing of a message's sender by its lease number."""

    CURRENT = "current"
    """It holds the latest lease."""
    NEW = "new"
    """Its lease is later than all before: everything held for the holder before is obsolete."""
    STALE = "stale"
    """Its lease is over: nothing is done for it."""


class Fence:
    """Remembers the latest lease."""

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, number: int) -> Standing:
        """Return the standing of a message with this number; from now on lower ones are stale."""
        if number < self.highest:
            return Standing.STALE
        if number == self.highest:
            return Standing.CURRENT
        self.highest = number
        return Standing.NEW
