"""Keep a planner's knowledge for later processes with the same model and speculators."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.costs import SIZES, RatioMean, StepCosts
from specinfer.planning.gains import Counts, TreeGains
from specinfer.system.derived import derived_path, store_value, stored_value

_AGE = 1000
"""Steps by which the knowledge of an earlier process is aged."""


class PlannerMemory:
    """A file in the cache directory for each pool of speculators."""

    def __init__(self, parts: Sequence[str], names: Sequence[str]) -> None:
        """Name the file by `parts`: the model's fingerprint, the machine and so on.

        `names` are those of the speculators by number; the pool may extend the list.
        """
        self._parts, self._names = parts, names

    def restore(self, speculators: SpeculatorSet, costs: StepCosts, gains: TreeGains) -> None:
        """Set the stored knowledge of these speculators; an unreadable file is ignored."""
        kept = stored_value(self._path(speculators))
        try:
            if kept:
                _restore(kept, sorted(speculators), costs, gains)
        except (LookupError, TypeError, ValueError):
            return

    def keep(self, speculators: SpeculatorSet, costs: StepCosts, gains: TreeGains) -> None:
        """Write the knowledge; an error is only logged."""
        places = {number: place for place, number in enumerate(sorted(speculators))}

        def form(one: Iterable[int]) -> list[int]:
            return sorted([places[number] for number in one])

        timed = [
            (form(one), size, nodes, mean.mean, mean.variance, mean.count)
            for (one, size), means in costs.timed.items()
            if one <= speculators
            for nodes, mean in means.items()
        ]
        counts = [
            (form(one), size, counts.sums.tolist())
            for (one, size), counts in gains.counts.items()
            if one <= speculators
        ]
        factors = [(size, *table.kept()) for size, table in costs.tables.items()]
        reading = [(places[one], *sums) for one, sums in costs.reading.items() if one in places]
        store_value(
            self._path(speculators),
            {"timed": timed, "counts": counts, "factors": factors, "reading": reading},
        )

    def _path(self, speculators: SpeculatorSet) -> Path:
        names = [self._names[number] for number in sorted(speculators)]
        return derived_path("planner", [*self._parts, *names, str(SIZES)])


def _restore(kept: dict[str, Any], numbers: Sequence[int], costs: StepCosts, gains: TreeGains) -> None:
    def set_of(form: Iterable[int]) -> SpeculatorSet:
        return frozenset([numbers[place] for place in form])

    for form, size, nodes, mean, variance, count in kept["timed"]:
        costs.timed.setdefault((set_of(form), size), {})[nodes] = RatioMean(
            float(mean), float(variance), float(count)
        )
    for form, size, sums in kept["counts"]:
        counts = gains.counts[set_of(form), size] = Counts()
        counts.sums, counts.step = np.array(sums, float).reshape(counts.sums.shape), gains.step
    for size, *values in kept["factors"]:
        costs.factors_of(size).restore(*values)
        costs.factors_of(size).age(_AGE)
    costs.reading = {numbers[place]: (float(read), float(cost)) for place, read, cost in kept["reading"]}
