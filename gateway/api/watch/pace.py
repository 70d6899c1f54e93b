"""How many steps are told: so many a second at most, all watches together, so that looking is cheap. Pure."""

PER_SECOND = 200
"""A reply about a tree of 30 nodes takes half a millisecond to make, so all of them take a tenth of the event
loop's time at most."""
AT_ONCE = 20
"""After a pause."""


class Pace:
    """Gives out turns, one after another."""

    def __init__(self) -> None:
        self._next = 0.0

    def turn(self, now: float) -> float:
        """Takes a turn; returns how many seconds from now it is."""
        self._next = max(self._next, now - AT_ONCE / PER_SECOND) + 1 / PER_SECOND
        return max(0.0, self._next - now)
