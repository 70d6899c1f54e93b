"""Histograms of the drafted tokens that a step accepts, as measured: `benchmarks/results/acceptance-lengths.json`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.publish import RESULTS
from specinfer.errors import InvalidInputError

MEASURED = RESULTS / "acceptance-lengths.json"
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


def measured(name: str, path: Path = MEASURED) -> AcceptanceHistogram:
    """The histogram of this name in a report of `benchmarks.acceptance_lengths`.

    Raises:
        InvalidInputError: naming those that there are.
    """
    found: dict[str, Sequence[int]] = json.loads(path.read_text())["histograms"]
    if name not in found:
        raise InvalidInputError("histogram", name, f"must be one of {', '.join(found)}")
    return AcceptanceHistogram(name, tuple(found[name]))


def mark(histogram: AcceptanceHistogram) -> dict[str, Any]:
    """Return what every report of figures under synthetic acceptance carries as `synthetic_acceptance`."""
    return {
        "warning": WARNING,
        "source": f"{MEASURED.name}: {histogram.name}",
        "counts": list(histogram.counts),
        "tokens_per_step": histogram.tokens_per_step,
    }
