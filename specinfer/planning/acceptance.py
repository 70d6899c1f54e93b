"""The acceptance model: expected accepted tokens of a step. Pure.

    accepted(S, n) = share(S) * accepted(n) * sum over requests r of  a_r

accepted(n) is what trees of n nodes bring of a usual text, measured by batch size (`by_nodes`), a_r how
predictable a text is beside that: the ratio of what its own trees brought to what was expected of them, and
of eight usual ones. share(S) is what a speculator set would have brought of what the whole pool did: of every
accepted token it is known who proposed it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import NamedTuple

from specinfer.planning.by_nodes import ByNodes, sizes_up_to
from specinfer.planning.latency import SpeculatorSet
from specinfer.planning.subtrees import ranked_nodes
from specinfer.tree import TokenTree

_REQUEST_MEMORY = 40.0
"""Trees after which one counts 1/e of the newest in what is known of a text."""
_PRIOR = 12.0
"""Accepted tokens that what is usual counts for in it: some eight steps."""
_TEXT, _HOPE = 4, 0.5
"""Trees after which a text is seen; how much better than those seen a new one is hoped to be, over the root
of their number: as texts differ, a few say little of the next one."""
_RECORDS = 256
"""Trees of the whole pool from which shares are counted, anew whenever an eighth of them is new."""
_SHARES_KNOWN = 16
"""Trees of the whole pool before parts of it are chosen."""

NO_CONTEXTS: Mapping[str, int] = MappingProxyType({})

Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""By request: its tree and the accepted nodes."""


class Expected(NamedTuple):
    """Of a step of all followed requests, by the nodes planned for each."""

    tokens: dict[SpeculatorSet, list[float]]
    """Accepted ones, by whom is asked."""
    kept: list[float]
    """Nodes that are verified of one request's tree."""


@dataclass(slots=True)
class _Ratio:
    """Accepted tokens over expected ones, older ones counting less."""

    hope: float
    """What it is thought to be as long as nothing of it is known."""
    accepted: float = 0.0
    expected: float = 0.0
    trees: int = 0

    def add(self, accepted: float, expected: float) -> None:
        fade = 1 - 1 / _REQUEST_MEMORY
        self.trees += 1
        self.accepted, self.expected = fade * self.accepted + accepted, fade * self.expected + expected

    def value(self, unknown: float = 1.0) -> float:
        """The ratio, if it would be that without any trees."""
        return (self.accepted + _PRIOR * unknown) / (self.expected + _PRIOR)


class AcceptanceModel:
    """Learns how many drafted tokens are accepted."""

    def __init__(self) -> None:
        self.everybody: SpeculatorSet = frozenset()
        self._sets: list[SpeculatorSet] = []
        self._batches: dict[int, ByNodes] = {}
        """By batch size in powers of two: the larger it is, the more is cut of trees."""
        self._requests: dict[str, _Ratio] = {}
        self._texts_seen = 0
        """Of which it saw some trees."""
        self._paths: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """Who proposed each token of an accepted path."""
        self._whole = self._new = 0
        """Trees of the whole pool, and those of them that shares were not counted from."""
        self._shares: dict[SpeculatorSet, float] = {}

    def enrol(self, everybody: SpeculatorSet) -> None:
        """From now on the pool has these speculators; what is known stays."""
        self.everybody = everybody
        self._count_shares()

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these requests, with so many tokens each, want drafts; others are forgotten."""
        known = self._requests
        hope = 1 + _HOPE / sqrt(max(1, len(contexts) + self._texts_seen))
        self._requests = {name: known.get(name) or _Ratio(hope) for name in contexts}

    @property
    def sets(self) -> list[SpeculatorSet]:
        """Those that may be asked: single speculators, and the pool built up by whoever adds most, the whole
        one last (2n - 1 sets, not 2^n). Until the pool has shown enough trees only it itself."""
        return self._sets if self._whole >= _SHARES_KNOWN else self._sets[-1:]

    def ratio(self, name: str) -> float:
        """Accepted tokens of a followed request over those of a usual one."""
        request = self._requests[name]
        return request.value(request.hope)

    def usual(self, batch: int) -> ByNodes:
        """What trees bring at a batch size."""
        size = (batch - 1).bit_length()
        if size not in self._batches:
            nearest = min(self._batches, key=lambda other: abs(other - size), default=None)
            self._batches[size] = ByNodes(None if nearest is None else self._batches[nearest])
        return self._batches[size]

    def expect(self, batch: int, sizes: Sequence[int]) -> Expected:
        """For trees of these sizes, in rising order."""
        usual = self.usual(batch).expect(sizes)
        ratios = sum([request.value(request.hope) for request in self._requests.values()])
        tokens = {
            asked: [factor * brought.accepted for brought in usual]
            for asked in self.sets
            for factor in [ratios * self.share(asked)]
        }
        return Expected(tokens, [brought.kept for brought in usual])

    def chosen(self, asked: SpeculatorSet, nodes: int) -> None:
        """These are asked in the step that begins, for so many nodes for each followed request."""

    def observe(
        self,
        batch: int,
        asked: SpeculatorSet,
        nodes: int,
        outcomes: Outcomes,
        merged: bool = True,
        contexts: Mapping[str, int] = NO_CONTEXTS,
    ) -> None:
        """Counts one step.

        Args:
            nodes: planned for each request. That fewer were kept, because none promised enough, is part of
            the outcome.
            merged: whether trees hold what everybody asked proposed, so that they tell of shares; chains do
            not.
            contexts: tokens of the requests when the step began.
        """
        share = self.share(asked) if merged else 1.0
        usual = self.usual(batch)
        expected = share * usual.expect(sizes_up_to(nodes))[-1].accepted if nodes else 0.0
        for name, (tree, path) in outcomes.items():
            forced = tree.forced  # comes whoever is asked
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
        """What a speculator set brings of what the whole pool does: of the recorded paths, the tokens up to
        the first that nobody of these proposed."""
        whole = sum([len(path) for path in self._paths])
        if asked == self.everybody or not whole:
            return 1.0 if asked else 0.0
        if asked not in self._shares:
            self._shares[asked] = sum([_prefix(path, asked) for path in self._paths]) / whole
        return self._shares[asked]

    def _record(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        self._whole += 1
        if not accepted:
            return
        proposers: dict[int, set[int]] = {node: set() for node in accepted}
        for proposal in tree.proposals:
            for child in proposal.children:
                if child in proposers:
                    proposers[child].add(proposal.speculator)
        self._paths.append(tuple(frozenset(found) for found in proposers.values()))
        self._new += 1
        if 8 * self._new >= len(self._paths):
            self._count_shares()

    def _count_shares(self) -> None:
        self._new, self._shares = 0, {}
        pool, grown = frozenset[int](), []
        while pool != self.everybody:
            added = max(sorted(self.everybody - pool), key=lambda speculator: self.share(pool | {speculator}))
            pool |= {added}
            grown.append(pool)
        singles = [frozenset({speculator}) for speculator in sorted(self.everybody)]
        self._sets = list(dict.fromkeys([*singles, *grown]))


def _prefix(path: Sequence[SpeculatorSet], asked: SpeculatorSet) -> int:
    return next((length for length, proposers in enumerate(path) if not proposers & asked), len(path))
