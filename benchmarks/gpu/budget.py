"""Time that is left."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


class Budget:
    """So many seconds from now on."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; negative when it is over."""
        return self._end - self._clock()

    def part(self, seconds: float) -> "Budget":
        """So many seconds of it, or what is left."""
        return Budget(min(seconds, self.left), self._clock)
