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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.tree import ProposalKind, TokenTree
from specinfer.tree.draws import AGREEMENT, Belief, draws_of

_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Minimum scores of the bins."""
_TRUST = 20.0
"""Weight of a speculator's own scores, in observed candidates."""
_MEMORY = 2000.0
"""Candidates after which an observation's weight falls to 1/e."""
_POINT = -1
"""Draw index used for points; draws count from 0."""


_SCORE_BINS, _GROUPS = 100, 10
_MAX_COUNTED = 4000
"""Candidates after which `Reliability` halves all counts."""
MIN_CANDIDATES = 100
"""Minimum candidates for a calibration error or an AUC."""


class Reliability:
    """Judges scores as forecasts, by the outcomes of candidates.

    The expected calibration error (Guo et al., arXiv 1706.04599) uses ten groups, each of ten bins of equal
    width. AUC (area under the ROC curve) is the probability that an accepted candidate had a higher score
    than a rejected candidate; scores within a bin count as equal.
    """

    def __init__(self) -> None:
        self._counts, self._promised, self._accepted = ([0.0] * _SCORE_BINS for _ in range(3))
        self._noted = 0

    def note(self, score: float, accepted: bool) -> None:
        """Count a candidate."""
        at = min(int(score * _SCORE_BINS), _SCORE_BINS - 1)
        self._counts[at] += 1
        self._promised[at] += score
        self._accepted[at] += accepted
        self._noted += 1
        if self._noted == _MAX_COUNTED:
            self._noted = _MAX_COUNTED // 2
            for sums in (self._counts, self._promised, self._accepted):
                sums[:] = [0.5 * value for value in sums]

    @classmethod
    def of_all(cls, parts: Iterable["Reliability"]) -> "Reliability":
        """Return the sum of the counts of several speculators."""
        whole = cls()
        for part in parts:
            for sums, more in (
                (whole._counts, part._counts),
                (whole._promised, part._promised),
                (whole._accepted, part._accepted),
            ):
                sums[:] = [a + b for a, b in zip(sums, more, strict=True)]
        return whole

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error; None below `MIN_CANDIDATES`."""
        total = sum(self._counts)
        if total < MIN_CANDIDATES:
            return None
        gaps = np.subtract(self._accepted, self._promised).reshape(_GROUPS, -1).sum(1)
        return float(np.abs(gaps).sum() / total)

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve; None if undefined, or below `MIN_CANDIDATES`."""
        accepted = np.array(self._accepted)
        rejected = np.array(self._counts) - accepted
        pairs = accepted.sum() * rejected.sum()
        if sum(self._counts) < MIN_CANDIDATES or pairs <= 0:
            return None
        below = np.cumsum(rejected) - 0.5 * rejected
        return float((accepted * below).sum() / pairs)


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
    """Bins by draw index; `_POINT` for points."""

    raw: Reliability = field(default_factory=Reliability)
    """Reliability of uncorrected scores."""
    corrected: Reliability = field(default_factory=Reliability)
    """Reliability of corrected scores."""

    def note(self, draw_index: int, score: float, accepted: bool) -> None:
        """Count a candidate."""
        counts = self.of(draw_index, score)
        self.raw.note(score, accepted)
        self.corrected.note(min(score * counts.factor, 1.0), accepted)
        counts.add(score, accepted)

    def of(self, draw_index: int, score: float) -> _Bin:
        return self.bins[min(draw_index, len(AGREEMENT) - 1)][bisect_right(_EDGES, score) - 1]

    def belief(self, draw_index: int, acceptance: float) -> float:
        """Return the corrected value of a score."""
        return min(acceptance * self.of(draw_index, acceptance).factor, 1.0)


class Calibration:
    """Corrects each speculator's scores by the outcomes of its candidates."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = defaultdict(_Record)

    def observe(self, speculator: int, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Count points of a draft as accepted or rejected.

        A point is accepted if its token is committed. `tree` has uncorrected scores. Children of nodes on the
        committed path count, even if they were cut before verification; other nodes do not count.

        Args:
            speculator: number of the speculator.
            tree: its draft.
            tokens: committed tokens.
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
        """Count the draws that the verifier tried in a tree.

        It tries draws at the root and at each accepted node.
        """
        draws, token_ids = tree.draws_by_parent(), tree.token_ids.tolist()
        for node, followed in zip((0, *accepted), (*accepted, None), strict=True):
            tried = draws.get(node, ())
            # expected acceptance of each draw if the verifier tries it
            expected = {
                index: [state.acceptance for _, state in draws_of(tree.proposals[index], token_ids)]
                for index, _ in tried
            }
            for index, draw_index in tried:
                proposal, acceptance = tree.proposals[index], expected[index][draw_index]
                hit = proposal.children[draw_index] == followed
                self._records[proposal.speculator].note(draw_index, acceptance, hit)
                if hit:
                    break

    def correct(self, speculator: int, tree: TokenTree) -> TokenTree:
        """Return the tree with corrected scores of its points."""
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
        return None if record is None else (record.raw, record.corrected)

    def beliefs(self) -> dict[int, Belief]:
        """Return a function per speculator that corrects acceptances of draws."""
        return {speculator: record.belief for speculator, record in self._records.items()}
