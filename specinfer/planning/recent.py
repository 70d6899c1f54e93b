"""What was measured lately, whatever disturbed it. Pure."""

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 15
"""Values that count: so what has changed is believed once eight of them say so."""
_FEW = 8
"""Values below which the lower ones are believed: disturbances only prolong, and who hopes tries again."""


class Recent:
    """The middle of the last values: their mean without the highest and the lowest."""

    __slots__ = ("_latest", "_ordered", "_outer", "value")

    def __init__(self, outer: int = 6) -> None:
        """What part of the values is left out at both ends: a sixth is near what things take on average, a
        third follows a change only when most values show it."""
        self._outer = outer
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
        if len(ordered) < _FEW:
            self.value = ordered[len(ordered) // 3]
            return
        left_out = len(ordered) // self._outer
        self.value = sum(ordered[left_out:-left_out]) / (len(ordered) - 2 * left_out)
