"""How far each speculator's scores can be believed: measured while serving. Pure.

A drafter scores every candidate with its own idea of the probability that it is accepted given that its
parent is. Softmax values of a small model, counts of an n-gram table and constants of somebody's function
do not mean the same; side by side in one merged tree they must. So scores are sorted into bins per
speculator, every bin counts how many candidates were accepted and how many its scores promised, and a
score is multiplied by the quotient. Within a bin the order stays the speculator's own.

Sampled candidates have no score that may be looked at (their rank must not depend on the token drawn),
so what is measured for them is the acceptance of the first, second, ... draw.

Only outcomes of earlier steps go in, so a cut that follows calibrated scores biases no output.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.tree import DRAW_PRIORS, ProposalKind, TokenTree

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_TRUST = 20.0
"""Candidates' worth of belief in a speculator's own scores."""
_MEMORY = 2000.0
"""Candidates after which a bin forgets half of what it knows: texts change."""


@dataclass(slots=True)
class _Bin:
    tried: float = 0.0
    accepted: float = 0.0
    promised: float = 0.0

    def add(self, score: float, accepted: bool) -> None:
        if self.tried > _MEMORY:
            self.tried, self.accepted, self.promised = self.tried / 2, self.accepted / 2, self.promised / 2
        self.tried += 1
        self.accepted += accepted
        self.promised += score

    def factor(self, typical: float) -> float:
        """By what to multiply a score; `typical` weighs the belief in the speculator itself."""
        trust = _TRUST * typical
        return (self.accepted + trust) / (self.promised + trust)


@dataclass(slots=True)
class _Record:
    """What is known of one speculator."""

    by_score: list[_Bin] = field(default_factory=lambda: [_Bin() for _ in range(len(_EDGES) + 1)])
    by_draw: list[_Bin] = field(default_factory=lambda: [_Bin() for _ in DRAW_PRIORS])

    def count(self, kind: ProposalKind, place: int, score: float, accepted: bool) -> None:
        """Counts one candidate; `place` is its place in the draw order."""
        if kind is ProposalKind.POINT:
            self.by_score[bisect_right(_EDGES, score)].add(score, accepted)
        elif place < len(DRAW_PRIORS):
            self.by_draw[place].add(DRAW_PRIORS[place], accepted)


class Calibration:
    """Counts outcomes and corrects scores."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def observe(self, speculator: int, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Counts one draft, as it came, against the tokens that were then committed.

        Candidates below the first wrong turn say nothing; what was cut away before verification counts too.
        """
        record = self._records.setdefault(speculator, _Record())
        token_ids, scores = tree.token_ids.tolist(), tree.scores.tolist()
        by_parent = tree.proposals_by_parent()
        node = 0
        for token in tokens:
            followed = None
            for proposal in by_parent.get(node, ()):
                for place, child in enumerate(proposal.children):
                    hit = token_ids[child] == token
                    record.count(proposal.kind, place, scores[child], hit)
                    if hit:
                        followed = child
                        if proposal.kind is not ProposalKind.POINT:
                            break  # later draws were not tried
            if followed is None:
                return
            node = followed

    def correct(self, speculator: int, tree: TokenTree) -> TokenTree:
        """The tree with scores that mean acceptance; sampled candidates are left to `draw_priors`."""
        record = self._records.get(speculator)
        if record is None or len(tree) == 1:
            return tree
        factors = [b.factor(low) for b, low in zip(record.by_score, (0.01, *_EDGES), strict=True)]
        found = [min(score * factors[bisect_right(_EDGES, score)], 1.0) for score in tree.scores[1:].tolist()]
        return replace(tree, scores=np.array([1.0, *found], np.float32))

    def draw_priors(self, speculator: int) -> tuple[float, ...]:
        """Expected acceptance of the first, second, ... draw of a speculator's sampled proposals."""
        record = self._records.get(speculator)
        if record is None:
            return DRAW_PRIORS
        return tuple(p * b.factor(p) for p, b in zip(DRAW_PRIORS, record.by_draw, strict=True))
