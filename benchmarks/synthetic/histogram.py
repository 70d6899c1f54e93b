"""Histograms of the drafted tokens that a step accepts, as measured by `benchmarks.acceptance_lengths`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specinfer.errors import InvalidInputError

MEASURED: Mapping[str, tuple[int, ...]] = {
    "greedy, 8 nodes": (66, 61, 43, 18, 15, 10, 6, 4, 4),
    "greedy, 16 nodes": (51, 49, 42, 23, 8, 14, 6, 1, 11),
    "greedy, 32 nodes": (41, 37, 32, 27, 14, 8, 6, 5, 14),
    "greedy, 64 nodes": (29, 38, 29, 23, 16, 6, 4, 8, 18),
    "stochastic, 8 nodes": (134, 136, 43, 23, 8, 4, 2, 0, 1),
    "stochastic, 16 nodes": (148, 111, 59, 24, 12, 3, 1),
    "stochastic, 32 nodes": (151, 85, 52, 25, 13, 9, 1),
    "stochastic, 64 nodes": (119, 87, 55, 34, 12, 5, 4),
}
"""Number of steps by accepted drafted tokens (`benchmarks/results/acceptance-lengths.md`)."""
WARNING = (
    "SYNTHETIC ACCEPTANCE: lengths of accepted paths are drawn from a measured histogram, whatever the model "
    "says. Times are real, texts are not."
)


@dataclass(frozen=True, slots=True)
class AcceptanceHistogram:
    """The histogram of one pool and node budget: `counts[i]` steps accepted i drafted tokens."""

    name: str
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not sum(self.counts) or min(self.counts) < 0:
            raise InvalidInputError("counts", list(self.counts), "must be counts, not all of them zero")

    @property
    def tokens_per_step(self) -> float:
        """Mean, the bonus token included."""
        return 1 + sum(i * count for i, count in enumerate(self.counts)) / sum(self.counts)

    def draw(self, rng: np.random.Generator) -> int:
        """A number of accepted tokens, by inversion of one uniform number."""
        sums = np.cumsum(self.counts)
        return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def measured(name: str) -> AcceptanceHistogram:
    """Return the measured histogram of this name.

    Raises:
        InvalidInputError: naming those that there are.
    """
    if name not in MEASURED:
        raise InvalidInputError("histogram", name, f"must be one of {', '.join(MEASURED)}")
    return AcceptanceHistogram(name, MEASURED[name])


def mark(histogram: AcceptanceHistogram) -> dict[str, Any]:
    """Return what every report of figures under synthetic acceptance carries as `synthetic_acceptance`."""
    return {
        "warning": WARNING,
        "source": f"acceptance-lengths.md: {histogram.name}",
        "counts": list(histogram.counts),
        "tokens_per_step": histogram.tokens_per_step,
    }
