"""Calibration of each speculator's scores: measured while serving. Pure.

A drafter scores every candidate with its own idea of the probability that it is accepted given that its
parent is. Softmax values of a small model, counts of an n-gram table and constants of somebody's function
do not mean the same; side by side in one merged tree they must. So scores are sorted into bins per
speculator, and a score is multiplied by

    (accepted + trust) / (promised + trust)

of its bin: how many candidates were accepted, over the sum of their scores. Within a bin the order stays
the speculator's own.

Of sampled candidates nobody's score is believed (their rank must not depend on the token drawn): what is
corrected is what can be expected of a draw before it is made (`specinfer.tree.draws`). They are counted
where the verifier really tried them: the rest would be accepted more often than they are the token that
came.

Where speculators boast differently, a pool without this has 0.91 of the speed (docs/performance.md#calibration).
Only outcomes of earlier steps go in, so a cut that follows calibrated scores biases no output.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.planning.reliability import Reliability
from specinfer.tree import ProposalKind, TokenTree
from specinfer.tree.draws import AGREEMENT, Belief, draws_of

_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Minimum scores of the bins."""
_TRUST = 20.0
"""Candidates' worth of belief in a speculator's own scores."""
_MEMORY = 2000.0
"""Candidates after which an observation's weight falls to 1/e."""
_POINT = -1
"""Stands for points where draws have a place in their order."""


@dataclass(slots=True)
class _Bin:
    trust: float
    accepted: float = 0.0
    promised: float = 0.0

    def add(self, score: float, accepted: bool) -> None:
        fade = 1 - 1 / _MEMORY
        self.accepted, self.promised = fade * self.accepted + accepted, fade * self.promised + score

    @property
    def factor(self) -> float:
        return (self.accepted + self.trust) / (self.promised + self.trust)


def _bins() -> list[_Bin]:
    return [_Bin(_TRUST * max(low, 0.01)) for low in _EDGES]


@dataclass(slots=True)
class _Record:
    """Statistics of one speculator."""

    bins: dict[int, list[_Bin]] = field(default_factory=lambda: defaultdict(_bins))
    """Bins of points, and of draws by order; the last is shared."""

    said: Reliability = field(default_factory=Reliability)
    """Scores as they came."""
    believed: Reliability = field(default_factory=Reliability)
    """Scores as they were corrected."""

    def note(self, place: int, score: float, accepted: bool) -> None:
        """Count a candidate."""
        counts = self.of(place, score)
        self.said.note(score, accepted)
        self.believed.note(min(score * counts.factor, 1.0), accepted)
        counts.add(score, accepted)

    def of(self, place: int, score: float) -> _Bin:
        return self.bins[min(place, len(AGREEMENT) - 1)][bisect_right(_EDGES, score) - 1]

    def belief(self, place: int, acceptance: float) -> float:
        """Return the corrected value of a score."""
        return min(acceptance * self.of(place, acceptance).factor, 1.0)


class Calibration:
    """Counts outcomes and corrects scores."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = defaultdict(_Record)

    def observe(self, speculator: int, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Count a draft's uncorrected points against the committed tokens.

        Candidates below the first wrong turn do not count; those cut before verification do.
        """
        record = self._records[speculator]
        token_ids, scores = tree.token_ids.tolist(), tree.scores.tolist()
        by_parent = tree.proposals_by_parent()
        node = 0
        for token in tokens:
            followed = -1
            for proposal in by_parent.get(node, ()):
                for child in proposal.children:
                    hit = token_ids[child] == token
                    followed = child if hit else followed
                    if proposal.kind is ProposalKind.POINT:
                        record.note(_POINT, scores[child], hit)
            if followed < 0:
                return
            node = followed

    def observe_draws(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Count a verified tree's tried draws, up to the accepted one."""
        draws, token_ids = tree.draws_by_parent(), tree.token_ids.tolist()
        for node, followed in zip((0, *accepted), (*accepted, None), strict=True):
            tried = draws.get(node, ())
            # of every draw, its expected acceptance if it is tried
            expected = {
                index: [state.acceptance for _, state in draws_of(tree.proposals[index], token_ids)]
                for index, _ in tried
            }
            for index, place in tried:
                proposal, acceptance = tree.proposals[index], expected[index][place]
                hit = proposal.children[place] == followed
                self._records[proposal.speculator].note(place, acceptance, hit)
                if hit:
                    break

    def correct(self, speculator: int, tree: TokenTree) -> TokenTree:
        """Correct the scores of points to acceptance; draws have `beliefs`."""
        if speculator not in self._records or len(tree) == 1:
            return tree
        belief = self._records[speculator].belief
        beliefs = [belief(_POINT, score) for score in tree.scores[1:].tolist()]
        return replace(tree, scores=np.array([1.0, *beliefs], np.float32))

    def reliability(self, speculator: int) -> tuple[Reliability, Reliability] | None:
        """Return the reliability of a speculator's scores, raw and corrected.

        None without drafts. The score of a draw is its expected acceptance before it was made.
        """
        record = self._records.get(speculator)
        return None if record is None else (record.said, record.believed)

    def beliefs(self) -> dict[int, Belief]:
        """Return the corrections for draws of each speculator that has made any."""
        return {speculator: record.belief for speculator, record in self._records.items()}
