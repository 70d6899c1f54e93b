"""What was measured lately, whatever disturbed it. Pure."""

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 15
"""Values that count: so what has changed is believed once eight of them say so."""
_FEW = 8
"""Values below which the lower ones are believed: disturbances only prolong, and who hopes tries again."""


class Recent:
    """The middle of the last values: their mean without the upper and the lower third."""

    __slots__ = ("_latest", "_ordered", "value")

    def __init__(self) -> None:
        self._latest = deque[float]()
        self._ordered: list[float] = []
        self.value = 0.0

    def __len__(self) -> int:
        """How many values count."""
        return len(self._ordered)

    def add(self, value: float) -> None:
        """Counts a value."""
        latest, ordered = self._latest, self._ordered
        if len(latest) == _WINDOW:
            del ordered[bisect_left(ordered, latest.popleft())]
        latest.append(value)
        insort(ordered, value)
        third = len(ordered) // 3
        middle = ordered[third:-third] if len(ordered) >= _FEW else ordered[third : third + 1]
        self.value = sum(middle) / len(middle)
