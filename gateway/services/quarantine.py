"""Leaving out a speculator whose trees are malformed again and again. Pure.

Malformed trees are dropped, so they change no text; but each costs time to ask for, to wait for and to check.
"""

from dataclasses import dataclass

IN_A_ROW = 8
"""Malformed trees without a sound one between them. A speculator that works sends none, so a few tell a fault
from an accident; one bad tree, of a request of an odd kind, should not cost the trees of all others."""
FIRST_S = 1.0
LONGEST_S = 300.0


@dataclass(slots=True)
class Quarantine:
    """One speculator's record. It returns on probation: one malformed tree leaves it out again, for twice as
    long; so many sound ones in a row as it takes malformed ones clear the record."""

    until: float = float("-inf")
    """When the latest one ends."""
    seconds: float = FIRST_S
    """How long the next one lasts."""
    _malformed: int = 0
    _sound: int = 0

    def holds(self, now: float) -> bool:
        """Whether it is left out."""
        return now < self.until

    def malformed(self, now: float) -> float:
        """Counts a malformed tree; the seconds of the quarantine that begins with it, or 0."""
        self._malformed += 1
        self._sound = 0
        if self._malformed < IN_A_ROW or self.holds(now):
            return 0.0
        begun, self.seconds = self.seconds, min(2 * self.seconds, LONGEST_S)
        self.until = now + begun
        return begun

    def sound(self) -> None:
        """Counts a sound tree."""
        self._malformed = 0
        self._sound += 1
        if self._sound >= IN_A_ROW:
            self.seconds = FIRST_S
