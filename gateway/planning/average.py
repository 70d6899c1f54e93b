"""Averages of times. Pure."""

_SMOOTHING = 0.08
"""Weight of the newest time in an average: it settles within a dozen steps."""
_OUTLIER = 3.0
"""A time counts as at most this multiple of the average: a pause is no cost of a step."""


class Average:
    """Exponential moving average; the first observations count equally."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Counts an observation."""
        if self._count:
            value = min(value, _OUTLIER * self.value)
        self._count += 1
        self.value += (value - self.value) * max(_SMOOTHING, 1 / self._count)
