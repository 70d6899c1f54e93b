"""The acceptance model: expected accepted tokens of a step. Pure.

    accepted(S, n) = sum over requests r of  a_r * share(S) * log2(1 + n / requests)

A best-first tree of n nodes brings about as many tokens with every doubling of 1 + n: the paper's acceptance
rates give 2.86, 3.14, 3.61 accepted tokens for 21, 32, 64 nodes, the shipped SSM 1.2, 1.6, 2.1, 2.5 for 4,
8, 16,
32. So one number says how predictable a text is, whatever the size of its trees: a_r, accepted tokens per
doubling. It is the ratio of sums over the request's own steps, and what is usual counts as eight steps of
every request.

share(S) is what a speculator set would have brought of what the whole pool did: of every accepted token it
is known who proposed it. Sets are the single speculators, and the pool built up by the speculator that adds
most.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import log2

from gateway.planning.averages import Ratio
from gateway.planning.latency import SpeculatorSet
from specinfer.tree import TokenTree

_FIRST = 0.5
"""Accepted tokens per doubling before anything was measured (the figures above)."""
_USUAL_MEMORY, _REQUEST_MEMORY = 100.0, 40.0
"""Trees: what is usual changes slowly, a text more quickly."""
_PRIOR = 8 * log2(1 + 8)
"""Doublings that what is usual counts for in a request's ratio: eight steps of eight nodes."""
_RECORDS, _REFRESH = 256, 16
"""Trees of the whole pool from which shares are counted, and new ones after which they are counted again (the
first ones sooner: until then every set would seem as good as the whole pool, and the cheapest would be
asked alone)."""

Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""By request: its tree and the accepted nodes."""


class AcceptanceModel:
    """Learns how many drafted tokens are accepted."""

    def __init__(self) -> None:
        self.everybody: SpeculatorSet = frozenset()
        self.sets: list[SpeculatorSet] = []
        """Those that may be asked, the whole pool last."""
        self.outcomes = 0
        """Trees seen so far."""
        self._usual = Ratio(_FIRST * _PRIOR, _PRIOR)
        self._requests: dict[str, Ratio] = {}
        self._records: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """Per tree: who proposed each token of the accepted path."""
        self._shares: dict[SpeculatorSet, float] = {}
        self._stale = 0

    def enrol(self, everybody: SpeculatorSet) -> None:
        """From now on the pool has these speculators; what is known stays."""
        self.everybody = everybody
        self._count_shares()

    def follow(self, names: Iterable[str]) -> None:
        """From now on these requests want drafts; others are forgotten."""
        known, usual = self._requests, self._usual.value
        self._requests = {name: known.get(name) or Ratio(usual * _PRIOR, _PRIOR) for name in names}

    def observe(self, asked: SpeculatorSet, nodes: float, outcomes: Outcomes, merged: bool = True) -> None:
        """Counts one step.

        Args:
            nodes: planned for each request. That fewer were kept, because none promised enough, is part of
            the outcome.
            merged: whether trees hold what everybody asked proposed, so that they tell of shares; chains do
            not.
        """
        doublings = log2(1 + nodes) * (self.share(asked) if merged else 1.0)
        for name, (tree, accepted) in outcomes.items():
            self.outcomes += 1
            if doublings > 0:
                self._usual.add(len(accepted), doublings, _USUAL_MEMORY)
                if name in self._requests:
                    self._requests[name].add(len(accepted), doublings, _REQUEST_MEMORY)
            if merged and asked == self.everybody and accepted:
                self._record(tree, accepted)

    def per_doubling(self, asked: SpeculatorSet) -> float:
        """Accepted tokens of a step of all followed requests for every doubling of their trees."""
        return self.share(asked) * sum([request.value for request in self._requests.values()])

    def share(self, asked: SpeculatorSet) -> float:
        """What a speculator set brings of what the whole pool does."""
        if asked not in self._shares:
            self._shares[asked] = self._counted(asked)
        return self._shares[asked]

    def _record(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        proposers: dict[int, set[int]] = {node: set() for node in accepted}
        for proposal in tree.proposals:
            for child in proposal.children:
                if child in proposers:
                    proposers[child].add(proposal.speculator)
        self._records.append(tuple(frozenset(found) for found in proposers.values()))
        self._stale += 1
        if self._stale >= min(_REFRESH, max(1, len(self._records) // 2)):
            self._count_shares()

    def _count_shares(self) -> None:
        """Builds the sets: singles, then the pool grown by whoever adds most (n (n + 1) / 2 counts for n)."""
        self._stale, self._shares = 0, {}
        singles = [frozenset({speculator}) for speculator in sorted(self.everybody)]
        grown: list[SpeculatorSet] = []
        left, pool = set(self.everybody), frozenset[int]()
        while left:
            best = max(sorted(left), key=lambda speculator: self.share(pool | {speculator}))
            left.discard(best)
            pool |= {best}
            grown.append(pool)
        self.sets = list(dict.fromkeys([*singles, *grown]))

    def _counted(self, asked: SpeculatorSet) -> float:
        """Of the recorded paths: tokens up to the first that nobody of these proposed."""
        whole = sum([len(path) for path in self._records])
        if asked == self.everybody or not whole:
            return 1.0 if asked else 0.0
        return sum([_prefix(path, asked) for path in self._records]) / whole


def _prefix(path: Sequence[SpeculatorSet], asked: SpeculatorSet) -> int:
    for length, proposers in enumerate(path):
        if not proposers & asked:
            return length
    return len(path)
