"""Let modes take turns, and compare each with another mode of the same turns.

The speed of a shared machine drifts by half within minutes, so only rates of one turn are comparable.
"""

from collections.abc import Iterable, Sequence
from statistics import quantiles, stdev
from typing import TypeVar

Mode = TypeVar("Mode")


def alternate(modes: Iterable[Mode], turn: int) -> list[Mode]:
    """Return the modes in the order of a turn: reversed every second time."""
    return list(modes)[:: -1 if turn % 2 else 1]


def ratios(rates: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return the ratio of two modes' rates in each turn."""
    return [rate / other for rate, other in zip(rates, base, strict=True)]


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; None for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third; one value is all of them."""
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return low, middle, high
