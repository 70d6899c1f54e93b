"""How many steps are told: so many a second at most, all watches together, so that looking is cheap. Pure."""

PER_SECOND = 200
"""Making a reply takes the event loop a fraction of a millisecond (docs/protocol.md#watching)."""
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
