"""Averages that follow what changes: one number, a ratio of sums, and values by batch size. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_SMOOTHING = 0.08
"""Weight of the newest observation: a step's times settle within a dozen steps."""
_OUTLIER = 3.0
"""A clipped observation counts as at most this multiple of the present value."""

T = TypeVar("T")
V = TypeVar("V")


class Average:
    """Exponential moving average; the first observations count equally."""

    __slots__ = ("_count", "_smoothing", "value")

    def __init__(self, smoothing: float = _SMOOTHING, start: float | None = None) -> None:
        """`start` is believed until observations move it; without it the first observation is."""
        self.value, self._smoothing = start or 0.0, smoothing
        self._count = 0 if start is None else round(1 / smoothing)

    @property
    def known(self) -> bool:
        """Whether anything was observed, or a start was given."""
        return self._count > 0

    def add(self, value: float) -> None:
        """Counts an observation, limited to a multiple of the present value: a pause is no cost of a step."""
        if self.known:
            value = min(value, _OUTLIER * self.value)
        self._count += 1
        self.value += (value - self.value) * max(self._smoothing, 1 / self._count)


@dataclass(slots=True)
class Ratio:
    """Sum of numerators over sum of denominators, older ones counting less."""

    numerator: float
    denominator: float

    def add(self, numerator: float, denominator: float, memory: float) -> None:
        """Counts an observation; those `memory` observations ago count 1/e as much as the newest."""
        fade = 1 - 1 / memory
        self.numerator = fade * self.numerator + numerator
        self.denominator = fade * self.denominator + denominator

    @property
    def value(self) -> float:
        """The ratio."""
        return self.numerator / self.denominator


class BySize(Generic[T]):
    """Values by batch size; sizes are told apart by powers of two."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._items: dict[int, T] = {}

    def __getitem__(self, batch: int) -> T:
        size = _size(batch)
        if size not in self._items:
            self._items[size] = self._make()
        return self._items[size]

    def nearest(self, batch: int, pick: Callable[[T], V | None]) -> V | None:
        """What `pick` finds at the nearest size that has it."""
        size = _size(batch)
        for other in sorted(self._items, key=lambda other: (abs(other - size), other)):
            found = pick(self._items[other])
            if found is not None:
                return found
        return None


def _size(batch: int) -> int:
    return (batch - 1).bit_length()
