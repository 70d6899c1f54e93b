"""Acceptance of the draws of a sampled proposal, estimated before their tokens are looked at.

Trees grow and are cut best first. Where a sampled candidate stands in that order must not depend on its own
token: keeping likely draws and dropping unlikely ones would change the distribution they come from, and the
output with it. So a draw is ranked by what is known before it: the distribution it will come from.

If q is all that is known, a draw x is accepted with probability sum(min(P, q)). A draft does not know P,
but where it is sure of what comes next it is right more often: on text the sum follows the norm of q
(docs/findings.md#best-first-draws). A draw that is rejected leaves q without x, and P without what q had
of it: then the next one is worse, and it is tried only if those before it failed.
"""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from specinfer.tree.token_tree import Proposal, ProposalKind

Belief = Callable[[int, float], float]
"""(place in the draw order, expected acceptance of a draw that is tried) -> the belief that replaces it."""

AGREEMENT = (0.85, 0.45, 0.3)
"""Expected acceptance, over the norm of q, of the first draw, the second, and all that follow, each if those
before it were rejected. Measured with the shipped SSM (docs/findings.md#best-first-draws)."""


def take_at_word(place: int, acceptance: float) -> float:
    """Return the expected acceptance unchanged: the belief where nothing was measured."""
    return acceptance


class Draws:
    """The draws of one proposal, taken one after another."""

    __slots__ = ("_alive", "_belief", "_left", "_replace", "_squares", "_sum", "chance", "place")

    place: int
    """Place of the next draw in the draw order."""
    chance: float
    """Probability that the next draw is the accepted one if its parent is accepted. Falls from draw to
    draw."""

    def __init__(self, q: Sequence[float], kind: ProposalKind, belief: Belief = take_at_word) -> None:
        """Start before the first draw; `q` are the probabilities of the tokens that can be drawn."""
        self._replace, self._belief = kind is ProposalKind.WITH_REPLACEMENT, belief
        self._sum, self._squares, self._left = sum(q), sum([p * p for p in q]), len(q)
        self.place, self._alive = 0, 1.0
        self.chance = belief(0, self.acceptance)

    @property
    def acceptance(self) -> float:
        """Expected probability that the next draw is accepted if it is tried, without any measurement."""
        if self._left == 0 or self._sum <= 0:
            return 0.0
        agreement = AGREEMENT[min(self.place, len(AGREEMENT) - 1)]
        return agreement * min(sqrt(max(self._squares, 0.0)) / self._sum, 1.0)  # rounding left nothing

    def take(self, probability: float) -> None:
        """Count a draw of a token that q gave this probability."""
        self._alive -= self.chance
        self.place += 1
        if not self._replace:
            self._sum -= probability
            self._squares -= probability * probability
            self._left -= 1
        self.chance = min(self.chance, self._alive * self._belief(self.place, self.acceptance))


def draws_of(
    proposal: Proposal, token_ids: Sequence[int], belief: Belief = take_at_word
) -> Iterator[tuple[int, Draws]]:
    """Return every child of a sampled proposal in draw order, with its estimates before it is drawn.

    Args:
        token_ids: of the tree's nodes.
    """
    q = proposal.q_probabilities.tolist()
    probability = dict(zip(proposal.q_token_ids.tolist(), q, strict=True))
    draws = Draws(q, proposal.kind, belief)
    for child in proposal.children:
        yield child, draws
        draws.take(probability[token_ids[child]])
