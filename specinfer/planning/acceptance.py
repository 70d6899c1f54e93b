"""The acceptance model: expected accepted tokens of a step. Pure.

    accepted(S, n) = share(S) * accepted(n) * sum over requests r of  a_r

accepted(n) is the number of tokens that trees of n nodes bring in a usual text, measured by batch size
(`by_nodes`). a_r is the predictability of a text: the ratio of the tokens that its own trees brought to the
expected ones, with the weight of eight usual trees. share(S) is the part of the whole pool's tokens that a
speculator set would have brought, counted from the proposers of every accepted token.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import NamedTuple

from specinfer.planning.accepted_tokens import own_prefix, proposers, sets_worth_asking
from specinfer.planning.by_nodes import ByNodes, ranked_nodes, sizes_up_to
from specinfer.planning.latency import SpeculatorSet, batch_size_class
from specinfer.tree import TokenTree

_REQUEST_MEMORY = 40.0
"""Trees of a text after which one counts 1/e of the newest."""
_PRIOR = 12.0
"""Weight of the usual text in this, in accepted tokens: some eight steps."""
_TEXT, _HOPE = 4, 0.5
"""Trees after which a text counts as seen; factor by which a new text is assumed to be better than those, over
the root of their number: as texts differ, few predict little of the next one."""
_RECORDS = 256
"""Trees of the whole pool from which shares are counted, anew whenever an eighth of them is new."""
_SHARES_KNOWN = 16
"""Trees of the whole pool before parts of it are chosen."""

NO_CONTEXTS: Mapping[str, int] = MappingProxyType({})

Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""By request: its tree and the accepted nodes."""


class Expected(NamedTuple):
    """Outcome expected of a step of all followed requests, by the nodes planned for each."""

    tokens: dict[SpeculatorSet, list[float]]
    """Accepted tokens by speculator set."""
    kept: list[float]
    """Nodes of one request's tree that are verified."""


@dataclass(slots=True)
class _Ratio:
    """Accepted tokens over expected ones, older ones counting less."""

    hope: float
    """Value before any tree."""
    accepted: float = 0.0
    expected: float = 0.0
    trees: int = 0

    def add(self, accepted: float, expected: float) -> None:
        fade = 1 - 1 / _REQUEST_MEMORY
        self.trees += 1
        self.accepted, self.expected = fade * self.accepted + accepted, fade * self.expected + expected

    def value(self, unknown: float = 1.0) -> float:
        """Return the ratio, given its value without any trees."""
        return (self.accepted + _PRIOR * unknown) / (self.expected + _PRIOR)


class AcceptanceModel:
    """Learns how many drafted tokens are accepted."""

    def __init__(self) -> None:
        self.everybody: SpeculatorSet = frozenset()
        self._sets: list[SpeculatorSet] = []
        self._batches: dict[int, ByNodes] = {}
        """Means by batch size in powers of two: the larger it is, the more is cut of trees."""
        self._requests: dict[str, _Ratio] = {}
        self._texts_seen = 0
        """Texts of which some trees were counted."""
        self._paths: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """Proposers of each token of accepted paths."""
        self._whole = self._new = 0
        """Trees of the whole pool, and those of them from which shares were not counted yet."""
        self._shares: dict[SpeculatorSet, float] = {}

    def enrol(self, everybody: SpeculatorSet) -> None:
        """Replace the pool's speculators; the statistics stay."""
        self.everybody = everybody
        self._count_shares()

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Take these requests, with so many tokens each, for those that want drafts; forget others."""
        known = self._requests
        hope = 1 + _HOPE / sqrt(max(1, len(contexts) + self._texts_seen))
        self._requests = {name: known.get(name) or _Ratio(hope) for name in contexts}

    @property
    def sets(self) -> list[SpeculatorSet]:
        """Sets that may be chosen: 2n - 1 of the 2^n, and only the whole pool until its trees were counted.

        They are single speculators, and the pool built up by the one that adds most, the whole pool last.
        """
        return self._sets if self._whole >= _SHARES_KNOWN else self._sets[-1:]

    def ratio(self, name: str) -> float:
        """Return accepted tokens of a followed request over those of a usual one."""
        request = self._requests[name]
        return request.value(request.hope)

    def usual(self, batch: int) -> ByNodes:
        """Return the means of trees at a batch size."""
        size = batch_size_class(batch)
        if size not in self._batches:
            nearest = min(self._batches, key=lambda other: abs(other - size), default=None)
            self._batches[size] = ByNodes(None if nearest is None else self._batches[nearest])
        return self._batches[size]

    def expect(self, batch: int, sizes: Sequence[int]) -> Expected:
        """Return the outcome expected of trees of these sizes, in rising order."""
        usual = self.usual(batch).expect(sizes)
        ratios = sum([request.value(request.hope) for request in self._requests.values()])
        tokens = {
            asked: [factor * brought.accepted for brought in usual]
            for asked in self.sets
            for factor in [ratios * self.share(asked)]
        }
        return Expected(tokens, [brought.kept for brought in usual])

    def observe(
        self,
        batch: int,
        asked: SpeculatorSet,
        nodes: int,
        outcomes: Outcomes,
        merged: bool = True,
        contexts: Mapping[str, int] = NO_CONTEXTS,
    ) -> None:
        """Count one step.

        Args:
            batch: requests of the step.
            asked: speculators that drafted in it.
            nodes: planned for each request. That fewer were kept, because none promised enough, is part of
                the outcome.
            outcomes: trees and accepted nodes by request.
            merged: True for trees that hold the proposals of all these speculators, so that shares can be
                counted from them; False for chains.
            contexts: tokens of the requests when the step began.
        """
        share = self.share(asked) if merged else 1.0
        usual = self.usual(batch)
        expected = share * usual.expect(sizes_up_to(nodes))[-1].accepted if nodes else 0.0
        for name, (tree, path) in outcomes.items():
            forced = tree.forced  # proposed whatever set is chosen
            accepted = [node for node in path if node not in forced] if forced else path
            request = self._requests.get(name)
            if expected > 0:
                needed = ranked_nodes(tree, accepted)
                weight = share * (request.value() if request else 1.0)
                usual.add(nodes, len(tree) - 1 - len(forced), needed, weight)
                if request:
                    request.add(len(accepted), expected)
                    self._texts_seen += request.trees == _TEXT
            if merged and asked == self.everybody:
                self._record(tree, accepted)

    def share(self, asked: SpeculatorSet) -> float:
        """Return the part of the whole pool's tokens that a speculator set brings.

        Of the recorded paths these are the tokens up to the first that none of the set proposed.
        """
        whole = sum([len(path) for path in self._paths])
        if asked == self.everybody or not whole:
            return 1.0 if asked else 0.0
        if asked not in self._shares:
            self._shares[asked] = sum([own_prefix(path, asked) for path in self._paths]) / whole
        return self._shares[asked]

    def _record(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        self._whole += 1
        if not accepted:
            return
        self._paths.append(proposers(tree, accepted))
        self._new += 1
        if 8 * self._new >= len(self._paths):
            self._count_shares()

    def _count_shares(self) -> None:
        self._new, self._shares = 0, {}
        self._sets = sets_worth_asking(self.everybody, self.share)
