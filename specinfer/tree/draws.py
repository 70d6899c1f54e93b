"""Estimates the acceptance of draws before their tokens are known.

Trees grow and are cut best first. Where a sampled candidate stands in that order must not depend on its own
token: keeping likely draws and dropping unlikely ones would change the distribution they come from, and the
output with it. So a draw is ranked by the distribution it will come from.

Given only q, a draw x is accepted with probability sum(min(P, q)). A draft does not know P, but a more
certain draft is right more often: on text the sum follows the norm of q (docs/performance.md#best-first-draws).
A rejected draw removes x from q, and q's share from P: the next one is worse, and it is tried only if all
before it failed.
"""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from specinfer.tree.token_tree import Proposal, ProposalKind

Belief = Callable[[int, float], float]
"""Corrects an expected acceptance; the other argument is the draw's place."""

AGREEMENT = (0.85, 0.45, 0.3)
"""Expected acceptance of the first, the second, and later draws.

Each is relative to the norm of q, after rejections of those before it (docs/performance.md#best-first-draws).
"""


def take_at_word(place: int, acceptance: float) -> float:
    """Return the expected acceptance unchanged: the belief where nothing was measured."""
    return acceptance


class Draws:
    """The draws of one proposal, taken one after another."""

    __slots__ = ("_alive", "_belief", "_left", "_replace", "_squares", "_sum", "chance", "place")

    place: int
    """Place of the next draw in the draw order."""
    chance: float
    """Probability that the next draw is accepted, given its parent.

    It falls from draw to draw.
    """

    def __init__(self, q: Sequence[float], kind: ProposalKind, belief: Belief = take_at_word) -> None:
        """Start before the first draw; `q` are the drawable tokens' probabilities."""
        self._replace, self._belief = kind is ProposalKind.WITH_REPLACEMENT, belief
        self._sum, self._squares, self._left = sum(q), sum([p * p for p in q]), len(q)
        self.place, self._alive = 0, 1.0
        self.chance = belief(0, self.acceptance)

    @property
    def acceptance(self) -> float:
        """Expected acceptance of the next draw if tried, without any measurement."""
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
    """Yield a sampled proposal's children with estimates, in draw order.

    Args:
        token_ids: of the tree's nodes.
    """
    q = proposal.q_probabilities.tolist()
    probability = dict(zip(proposal.q_token_ids.tolist(), q, strict=True))
    draws = Draws(q, proposal.kind, belief)
    for child in proposal.children:
        yield child, draws
        draws.take(probability[token_ids[child]])
