"""Correct each speculator's scores by measured acceptance. Pure.

A drafter scores each candidate with an estimated probability that it is accepted if its parent is. Softmax
values of a small model, counts of an n-gram table and constants of a user's function are not comparable, but
a merged tree ranks them together. So scores are sorted into bins per speculator, and each is multiplied by

    (accepted + trust) / (promised + trust)

of its bin: `accepted` counts the bin's accepted candidates, `promised` is the sum of its candidates' scores.
Within a bin the speculator's own order is kept.

The rank of a sampled candidate must not depend on the sampled token. So its score is ignored; the expected
acceptance of a draw before it is made (`specinfer.tree.draws`) is corrected instead. Only draws that the
verifier tried are counted: an untried draw equals the committed token less often than it would be accepted.

Only outcomes of earlier steps are used, so cutting by calibrated scores does not bias the output.
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
"""Weight, in candidates, of a speculator's own scores."""
_MEMORY = 2000.0
"""Candidates after which an observation's weight falls to 1/e."""
_POINT = -1
"""Key of the bins of points; draws use their index, from 0."""


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
    """Bins of points, and of draws by index; late draws share one."""

    said: Reliability = field(default_factory=Reliability)
    """Reliability of uncorrected scores."""
    believed: Reliability = field(default_factory=Reliability)
    """Reliability of corrected scores."""

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
        """Count a draft's points as accepted or rejected, by the committed tokens.

        `tree` has uncorrected scores. Only children of nodes on the committed path count, cut or verified.
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
        """Count the draws tried at a verified tree's root and accepted nodes."""
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
        """Return the tree with corrected scores of points; `beliefs` corrects draws."""
        if speculator not in self._records or len(tree) == 1:
            return tree
        belief = self._records[speculator].belief
        beliefs = [belief(_POINT, score) for score in tree.scores[1:].tolist()]
        return replace(tree, scores=np.array([1.0, *beliefs], np.float32))

    def reliability(self, speculator: int) -> tuple[Reliability, Reliability] | None:
        """Return the reliability of a speculator's scores, raw and corrected.

        None if no candidate was counted. The score of a draw is its expected acceptance before it was made.
        """
        record = self._records.get(speculator)
        return None if record is None else (record.said, record.believed)

    def beliefs(self) -> dict[int, Belief]:
        """Return each speculator's map of (draw's index, acceptance) to corrected acceptance."""
        return {speculator: record.belief for speculator, record in self._records.items()}
