"""The latency model: expected seconds of a step. Pure.

    seconds(S, n) = overhead + max over services of drafts(S in that service) + pass(batch, n)

Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
alternatives were measured then. So every time is kept relative to the pace of its moment, which the passes
tell (`pass_times`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.planning.averages import Average, BySize
from gateway.planning.pass_times import PassCurve, PassTimes

SpeculatorSet = frozenset[int]


class DraftTime(NamedTuple):
    """What one service took for one step's drafts."""

    service: SpeculatorSet
    """All its speculators."""
    own_s: Mapping[int, float]
    """Of those asked: they draft one after another."""
    wire_s: float
    """The rest: messages and what the service does for all."""

    @property
    def total_s(self) -> float:
        """From the question to the answer."""
        return self.wire_s + sum(self.own_s.values())


class LatencyModel:
    """Learns what the phases of a step take."""

    def __init__(self, curve: PassCurve) -> None:
        self.passes = PassTimes(curve)
        self._plain_before = True
        """Whether the last pass had no trees."""
        self._overhead = {False: Average(), True: Average()}  # without and with drafts
        self._drafts: BySize[dict[object, Average]] = BySize(dict)
        """By speculator its own time, by service the time of its messages."""

    def observe(
        self, batch: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], overhead_s: float
    ) -> None:
        """Counts one step; `drafts` is empty for plain decoding."""
        telling = self.observe_pass(batch, tokens, pass_s)
        pace = self.passes.pace
        overhead = self._overhead[bool(drafts)]
        if drafts or telling or not overhead.known:
            overhead.add(overhead_s / pace)
        for draft in drafts:
            self._average(batch, draft.service).add(draft.wire_s / pace)
            for speculator, seconds in draft.own_s.items():
                self._average(batch, speculator).add(seconds / pace)

    def observe_pass(self, batch: int, tokens: int, seconds: float) -> bool:
        """Counts a pass, unless it is the first plain one after trees: drafts leave it cold caches."""
        trees = tokens > batch
        telling = trees or self._plain_before
        if telling:
            self.passes.observe(batch, tokens, seconds)
        self._plain_before = not trees
        return telling

    def step_seconds(
        self, batch: int, asked: SpeculatorSet, services: Iterable[SpeculatorSet], most_nodes: int
    ) -> NDArray[np.float64]:
        """[1 + most_nodes] seconds of a step that asks these speculators and verifies 0, 1, ... nodes in
        all."""
        drafts = [self.draft_seconds(batch, asked & members, members) for members in services]
        fixed = self.passes.pace * self._overhead[bool(asked)].value + max(drafts, default=0.0)
        return fixed + self.passes.seconds_by_nodes(batch, most_nodes)

    def draft_seconds(self, batch: int, asked: SpeculatorSet, service: SpeculatorSet) -> float:
        """Seconds of the drafts of speculators of one service."""
        if not asked:
            return 0.0
        return self.passes.pace * sum(self._expected(batch, key) for key in (service, *asked))

    def _average(self, batch: int, key: object) -> Average:
        averages = self._drafts[batch]
        if key not in averages:
            averages[key] = Average(start=self._expected(batch, key) or None)
        return averages[key]

    def _expected(self, batch: int, key: object) -> float:
        """Of this batch size, or of the nearest one that was measured."""
        found = self._drafts.nearest(batch, lambda averages: averages.get(key))
        return found.value if found is not None else 0.0
