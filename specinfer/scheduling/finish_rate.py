"""How fast requests finish at present: what a caller is told that finds the queue full. Pure."""

from collections import deque

LEAST_HINT_S = 0.1
MOST_HINT_S = 60.0
_FIRST_HINT_S = 1.0
"""While nothing has finished yet."""
_REMEMBERED = 32


class FinishRate:
    """Counts the latest finishes since there was last nothing to do."""

    def __init__(self) -> None:
        self._since = 0.0
        self._finishes: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, now: float) -> None:
        """There was nothing to do until now: how long that lasted says nothing of how fast work is done."""
        self._since = now
        self._finishes.clear()

    def finish(self, now: float) -> None:
        """A request has finished."""
        if len(self._finishes) == _REMEMBERED:
            self._since = self._finishes[0]
        self._finishes.append(now)

    def hint(self, now: float) -> float:
        """Seconds in which one request finishes, so that one place in the queue becomes free."""
        passed = now - self._since
        interval = passed / len(self._finishes) if self._finishes else max(_FIRST_HINT_S, passed)
        return min(max(interval, LEAST_HINT_S), MOST_HINT_S)
