"""The acceptance model: expected accepted tokens of a step. Pure.

    accepted(S, n) = sum over requests r of  a_r * share(S) * log2(1 + n / requests)

A best-first tree of n nodes brings about as many tokens with every doubling of 1 + n: the paper's acceptance
rates give 2.86, 3.14, 3.61 accepted tokens for 21, 32, 64 nodes, the shipped SSM 1.2, 1.6, 2.1, 2.5 for 4, 8,
16, 32. So one number tells how predictable a text is: a_r, accepted tokens per doubling, the ratio of sums
over the request's own steps and eight usual ones. share(S) is what a speculator set would have brought of
what the whole pool did: of every accepted token it is known who proposed it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gateway.planning.latency import SpeculatorSet
from specinfer.tree import TokenTree

_FIRST = 0.5
"""Accepted tokens per doubling before anything was measured (the figures above)."""
_USUAL_MEMORY, _REQUEST_MEMORY = 100.0, 40.0
"""Trees after which one counts 1/e of the newest: what is usual changes slowly, a text more quickly."""
_PRIOR = 8 * log2(1 + 8)
"""Doublings that what is usual counts for in a request's ratio: eight steps of eight nodes."""
_RECORDS = 256
"""Trees of the whole pool from which shares are counted, anew whenever an eighth of them is new."""

NO_CONTEXTS: Mapping[str, int] = MappingProxyType({})

Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""By request: its tree and the accepted nodes."""


@dataclass(slots=True)
class _Ratio:
    """Accepted tokens over doublings, older ones counting less."""

    accepted: float
    doublings: float = _PRIOR

    def add(self, accepted: float, doublings: float, memory: float) -> None:
        fade = 1 - 1 / memory
        self.accepted, self.doublings = fade * self.accepted + accepted, fade * self.doublings + doublings

    @property
    def value(self) -> float:
        return self.accepted / self.doublings


class AcceptanceModel:
    """Learns how many drafted tokens are accepted."""

    def __init__(self) -> None:
        self.everybody: SpeculatorSet = frozenset()
        self.sets: list[SpeculatorSet] = []
        """Those that may be asked: single speculators, and the pool built up by whoever adds most, the whole
        one last (2n - 1 sets, not 2^n)."""
        self.outcomes = 0
        """Trees seen so far."""
        self._usual = _Ratio(_FIRST * _PRIOR)
        self._requests: dict[str, _Ratio] = {}
        self._paths: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """Who proposed each token of an accepted path."""
        self._new = 0
        self._shares: dict[SpeculatorSet, float] = {}

    def enrol(self, everybody: SpeculatorSet) -> None:
        """From now on the pool has these speculators; what is known stays."""
        self.everybody = everybody
        self._count_shares()

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these requests, with so many tokens each, want drafts; others are forgotten."""
        known, usual = self._requests, self._usual.value
        self._requests = {name: known.get(name) or _Ratio(usual * _PRIOR) for name in contexts}

    @property
    def usual(self) -> float:
        """Accepted tokens per doubling, of all requests."""
        return self._usual.value

    def chosen(self, asked: SpeculatorSet, nodes: float) -> None:
        """These are asked in the step that begins, for so many nodes for each followed request."""

    def observe(
        self,
        asked: SpeculatorSet,
        nodes: float,
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
        doublings = log2(1 + nodes) * (self.share(asked) if merged else 1.0)
        for name, (tree, path) in outcomes.items():
            forced = tree.forced  # comes whoever is asked
            accepted = [node for node in path if node not in forced] if forced else path
            self.outcomes += 1
            if doublings > 0:
                self._usual.add(len(accepted), doublings, _USUAL_MEMORY)
                if name in self._requests:
                    self._requests[name].add(len(accepted), doublings, _REQUEST_MEMORY)
            if merged and asked == self.everybody and accepted:
                self._record(tree, accepted)

    def by_nodes(self, most: int) -> NDArray[np.float64]:
        """[sets, 1 + most] accepted tokens to expect of a step of all followed requests, by speculator set
        and with 0, 1, ... nodes in all."""
        per_doubling = [self.per_doubling(asked) for asked in self.sets]
        return np.outer(per_doubling, doublings(most, len(self._requests)))

    def per_doubling(self, asked: SpeculatorSet) -> float:
        """Accepted tokens of a step of all followed requests for every doubling of their trees."""
        return self.share(asked) * sum([request.value for request in self._requests.values()])

    def per_doubling_of(self, name: str) -> float:
        """The same of one followed request, if the whole pool drafts."""
        return self._requests[name].value

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
        self.sets = list(dict.fromkeys([*singles, *grown]))


@lru_cache(maxsize=256)
def doublings(most: int, requests: int) -> NDArray[np.float64]:
    """[1 + most] log2(1 + nodes / requests) for 0, 1, ... nodes in all."""
    return np.log2(1 + np.arange(most + 1) / requests)


def _prefix(path: Sequence[SpeculatorSet], asked: SpeculatorSet) -> int:
    return next((length for length, proposers in enumerate(path) if not proposers & asked), len(path))
