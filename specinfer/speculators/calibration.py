"""How far each speculator's scores can be believed: measured while serving. Pure.

A drafter scores every candidate with its own idea of the probability that it is accepted given that its
parent is. Softmax values of a small model, counts of an n-gram table and constants of somebody's function
do not mean the same; side by side in one merged tree they must. So scores are sorted into bins per
speculator, every bin counts how many candidates were accepted and how many its scores promised, and a
score is multiplied by the quotient. Within a bin the order stays the speculator's own.

Of sampled candidates nobody's score is believed (their rank must not depend on the token drawn): what is
corrected is what can be expected of a draw before it is made (`specinfer.tree.draws`). They are counted
where the verifier really tried them: the rest would be accepted more often than they are the token that
came.

Only outcomes of earlier steps go in, so a cut that follows calibrated scores biases no output.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.tree import Proposal, ProposalKind, TokenTree
from specinfer.tree.draws import AGREEMENT, Belief, draws_of

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_PLACES = len(AGREEMENT)
"""Places in the draw order that are told apart, the last being all others."""
_TRUST = 20.0
"""Candidates' worth of belief in a speculator's own scores."""
_MEMORY = 2000.0
"""Candidates after which a bin forgets half of what it knows: texts change."""


@dataclass(slots=True)
class _Bin:
    low: float
    """A low score of those it counts: weighs the belief in the speculator itself."""
    tried: float = 0.0
    accepted: float = 0.0
    promised: float = 0.0

    def add(self, score: float, accepted: bool) -> None:
        if self.tried > _MEMORY:
            self.tried, self.accepted, self.promised = self.tried / 2, self.accepted / 2, self.promised / 2
        self.tried += 1
        self.accepted += accepted
        self.promised += score

    @property
    def factor(self) -> float:
        """By what to multiply a score."""
        trust = _TRUST * self.low
        return (self.accepted + trust) / (self.promised + trust)


def _bins() -> list[_Bin]:
    return [_Bin(low) for low in (0.01, *_EDGES)]


@dataclass(slots=True)
class _Record:
    """What is known of one speculator."""

    points: list[_Bin] = field(default_factory=_bins)
    draws: list[list[_Bin]] = field(default_factory=lambda: [_bins() for _ in range(_PLACES)])
    """By place in the draw order."""

    def belief(self, place: int, acceptance: float) -> float:
        """What to believe of a draw."""
        return min(acceptance * self.of_draw(place, acceptance).factor, 1.0)

    def of_point(self, score: float) -> _Bin:
        """Where a point is counted."""
        return self.points[bisect_right(_EDGES, score)]

    def of_draw(self, place: int, acceptance: float) -> _Bin:
        """Where a draw is counted."""
        return self.draws[min(place, _PLACES - 1)][bisect_right(_EDGES, acceptance)]


class Calibration:
    """Counts outcomes and corrects scores."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def observe(self, speculator: int, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Counts the points of one draft, as it came, against the tokens that were then committed.

        Candidates below the first wrong turn say nothing; what was cut away before verification counts too.
        """
        record = self._record(speculator)
        token_ids, scores = tree.token_ids.tolist(), tree.scores.tolist()
        by_parent = tree.proposals_by_parent()
        node = 0
        for token in tokens:
            followed = None
            for proposal in by_parent.get(node, ()):
                for child in proposal.children:
                    hit = token_ids[child] == token
                    followed = child if hit else followed
                    if proposal.kind is ProposalKind.POINT:
                        record.of_point(scores[child]).add(scores[child], hit)
            if followed is None:
                return
            node = followed

    def observe_draws(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Counts the draws of a verified tree that were tried: those up to the accepted one."""
        draws, token_ids = tree.draws_by_parent(), tree.token_ids.tolist()
        for node, followed in zip((0, *accepted), (*accepted, None), strict=True):
            tried = draws.get(node, ())
            expected = {index: _expectations(tree.proposals[index], token_ids) for index, _ in tried}
            for index, place in tried:
                proposal, acceptance = tree.proposals[index], expected[index][place]
                hit = proposal.children[place] == followed
                self._record(proposal.speculator).of_draw(place, acceptance).add(acceptance, hit)
                if hit:
                    break

    def correct(self, speculator: int, tree: TokenTree) -> TokenTree:
        """The tree with scores of points that mean acceptance; for draws there are `beliefs`."""
        record = self._records.get(speculator)
        if record is None or len(tree) == 1:
            return tree
        factors = [b.factor for b in record.points]
        found = [min(score * factors[bisect_right(_EDGES, score)], 1.0) for score in tree.scores[1:].tolist()]
        return replace(tree, scores=np.array([1.0, *found], np.float32))

    def beliefs(self) -> dict[int, Belief]:
        """What to believe of the draws of each speculator that has made any."""
        return {speculator: record.belief for speculator, record in self._records.items()}

    def _record(self, speculator: int) -> _Record:
        return self._records.setdefault(speculator, _Record())


def _expectations(proposal: Proposal, token_ids: Sequence[int]) -> list[float]:
    """Of every draw: its expected acceptance if it is tried."""
    return [draws.acceptance for _, draws in draws_of(proposal, token_ids)]
