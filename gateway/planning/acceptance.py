"""What speculators bring: accepted nodes per step, usually and for each running request. Pure.

A step with all speculators tells the gain of every part of the pool, because who proposed an accepted
node is known. What is usual is averaged long, by batch size. Texts differ more than a text changes, so a
request has expectations of its own: what is usual counts as so many steps of it, its own steps count as
they are, and old ones fade. A new text so gets its chance whatever became of the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gateway.planning.latency import Average, BySize
from specinfer.tree import TokenTree

_SMOOTHING, _FIRST_GAIN = 0.01, 2.0
"""Gains are noisy (0 to 8 a step) and decide by tenths, so they are averaged long. The start is hopeful: a
gain that is believed too low is never found out, because then nobody drafts."""
_MOST_GAIN = 6.0
_LIKELY = 0.5
"""Share of the nodes of a small tree that may be hoped for."""
_PART_SMOOTHING = 0.03
_MOST_OF = 0.8
"""Share of what a part usually brings that tells enough about the rest. (N-grams bring most of a text that
copies and nothing of others: asked alone they say little about what an SSM would have brought.)"""
_PRIOR_STEPS, _MOST_STEPS = 8.0, 40.0
"""Steps of a request that what is usual counts for, and how many of its own are remembered."""

Part = frozenset[int]
Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""Per request: its tree and the accepted nodes."""


@dataclass(slots=True)
class _Usual:
    """At one batch size."""

    gain: Average | None = None
    """Of the whole pool, as if always asked."""
    parts: dict[Part, Average] = field(default_factory=dict)
    """What each part brought in steps of the whole pool: only their ratios count."""
    nodes: dict[Part, Average] = field(default_factory=dict)
    """Nodes verified per request."""


@dataclass(slots=True)
class _Own:
    """Of one request with one part of the pool."""

    steps: float = 0.0
    gained: float = 0.0

    def add(self, gained: float) -> None:
        fade = 1 - 1 / _MOST_STEPS
        self.steps, self.gained = fade * self.steps + 1, fade * self.gained + gained

    def expected(self, usual: float) -> float:
        return (_PRIOR_STEPS * usual + self.gained) / (_PRIOR_STEPS + self.steps)


class Gains:
    """Learns what each part of a pool brings."""

    def __init__(self) -> None:
        self.everybody: Part = frozenset()
        self.parts: list[Part] = []
        """Of the pool: all but the empty one, the small ones first."""
        self.outcomes = 0
        """Trees seen so far."""
        self._usual: BySize[_Usual] = BySize(_Usual)
        self._own: dict[str, dict[Part, _Own]] = {}
        self._most_nodes = 0

    def enrol(self, everybody: Part) -> None:
        """From now on the pool has these speculators; what is known of a part of it stays."""
        self.everybody = everybody
        sizes = range(1, len(everybody) + 1)
        self.parts = [frozenset(part) for size in sizes for part in combinations(sorted(everybody), size)]

    def follow(self, names: Iterable[str], most_nodes: int) -> None:
        """From now on these requests want trees of at most so many nodes; others are forgotten."""
        self._own = {name: self._own.get(name) or {} for name in names}
        self._most_nodes = most_nodes

    def observe(self, batch: int, asked: Part, outcomes: Outcomes) -> None:
        """Counts one step in which `asked` drafted."""
        self.outcomes += len(outcomes)
        usual = self._usual[batch]
        brought = {part: _brought(part, outcomes) for part in self.parts if part <= asked}
        self._learn_own(batch, brought)
        for part, found in brought.items():
            gain, nodes = (sum(values) / len(outcomes) for values in zip(*found.values(), strict=True))
            usual.nodes.setdefault(part, Average(_PART_SMOOTHING)).add(nodes, weight=len(outcomes))
            if asked == self.everybody:
                usual.parts.setdefault(part, Average(_PART_SMOOTHING)).add(gain, weight=len(outcomes))
            if part == asked:
                self._learn_usual(batch, part, gain, len(outcomes))

    def expected(self, batch: int, part: Part) -> float:
        """Accepted nodes per request of a step of the running requests, if this part of the pool is asked."""
        if not part:
            return 0.0
        usual, fresh = self.usual(batch, part), _Own()
        return sum(own.get(part, fresh).expected(usual) for own in self._own.values()) / batch

    def usual(self, batch: int, part: Part) -> float:
        """Accepted nodes per request and step in a usual text."""
        return self._whole(batch) * self.share(batch, part)

    def _whole(self, batch: int) -> float:
        """Of the whole pool. What another batch size lends was brought by larger trees, perhaps."""
        found = self._usual.nearest(batch, lambda usual: usual.gain)
        if found is None:
            return _FIRST_GAIN
        gain, doublings = found
        return min(gain.value, _LIKELY * self._most_nodes) if doublings else gain.value

    def share(self, batch: int, part: Part) -> float:
        """What a part of the pool brings of what the whole does."""
        own = self._usual.nearest(batch, lambda usual: usual.parts.get(part))
        whole = self._usual.nearest(batch, lambda usual: usual.parts.get(self.everybody))
        return own[0].value / whole[0].value if own and whole and whole[0].value else 1.0

    def nodes(self, batch: int, part: Part) -> float:
        """Nodes verified per request when this part is asked; 0 before it was."""
        found = self._usual.nearest(batch, lambda usual: usual.nodes.get(part))
        return min(found[0].value, self._most_nodes) if found else 0.0

    def _learn_own(self, batch: int, brought: Mapping[Part, Mapping[str, tuple[int, int]]]) -> None:
        """A part of which most was asked is taken to have brought as much more as it usually does."""
        for part in self.parts:
            seen = max((other for other in brought if other <= part), key=len, default=None)
            if seen is None or self.share(batch, seen) < _MOST_OF * self.share(batch, part):
                continue
            factor = self.share(batch, part) / self.share(batch, seen) if seen != part else 1.0
            for name, (gained, _) in brought[seen].items():
                if name in self._own:
                    self._own[name].setdefault(part, _Own()).add(factor * gained)

    def _learn_usual(self, batch: int, asked: Part, gain: float, weight: int) -> None:
        usual, share = self._usual[batch], self.share(batch, asked)
        if usual.gain is None:
            usual.gain = Average(_SMOOTHING, self._whole(batch))
        if share >= _MOST_OF:
            usual.gain.add(min(gain / share, _MOST_GAIN), weight=weight)


def _brought(part: Part, outcomes: Outcomes) -> dict[str, tuple[int, int]]:
    """Per request: accepted nodes that this part alone would have brought, and the nodes it had."""
    found = {}
    for name, (tree, accepted) in outcomes.items():
        own = {child for p in tree.proposals if p.speculator in part for child in p.children}
        lost = next((i for i, node in enumerate(accepted) if node not in own), len(accepted))
        found[name] = lost, len(own)
    return found
