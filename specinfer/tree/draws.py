"""Estimates the acceptance of draws before their tokens are known.

Trees grow and are cut best first. A draw's priority must not depend on its token: dropping improbable draws would
change the distribution of the draws, and so of the output. So a draw is ranked by the distribution q from which
it will be drawn.

Given only q, a draw is accepted with probability sum(min(P, q)). A draft does not know the target's P, but a more
certain draft is right more often: on text the sum follows the norm of q (benchmarks/tried.md#best-first-draws).
A rejected draw leaves less of P to the next draw, which is tried only if all draws before it were rejected.
"""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from specinfer.tree.token_tree import Proposal, ProposalKind

Belief = Callable[[int, float], float]
"""(index of a draw, from 0; its expected acceptance) -> corrected acceptance."""

AGREEMENT = (0.85, 0.45, 0.3)
"""Expected acceptance of first, second and later draws, divided by q's norm.

Each applies if all draws before it were rejected. Measured (benchmarks/tried.md#best-first-draws).
"""


def uncorrected(place: int, acceptance: float) -> float:
    """Return the acceptance unchanged; the `Belief` for speculators without measurements."""
    return acceptance


class Draws:
    """The state of one proposal's draws, which are made one after another."""

    __slots__ = ("_alive", "_belief", "_left", "_replace", "_squares", "_sum", "chance", "place")

    place: int
    """Index of the next draw."""
    chance: float
    """Probability that the next draw is accepted, if its parent is.

    It never increases from draw to draw.
    """

    def __init__(self, q: Sequence[float], kind: ProposalKind, belief: Belief = uncorrected) -> None:
        """Begin before the first draw; `q` has the drawable tokens' probabilities."""
        self._replace, self._belief = kind is ProposalKind.WITH_REPLACEMENT, belief
        self._sum, self._squares, self._left = sum(q), sum([p * p for p in q]), len(q)
        self.place, self._alive = 0, 1.0
        self.chance = belief(0, self.acceptance)

    @property
    def acceptance(self) -> float:
        """Expected acceptance of the next draw once it is tried, uncorrected."""
        if self._left == 0 or self._sum <= 0:
            return 0.0
        agreement = AGREEMENT[min(self.place, len(AGREEMENT) - 1)]
        return agreement * min(sqrt(max(self._squares, 0.0)) / self._sum, 1.0)  # bounded despite rounding

    def take(self, probability: float) -> None:
        """Record a draw; `probability` is q of its token."""
        self._alive -= self.chance
        self.place += 1
        if not self._replace:
            self._sum -= probability
            self._squares -= probability * probability
            self._left -= 1
        self.chance = min(self.chance, self._alive * self._belief(self.place, self.acceptance))


def draws_of(
    proposal: Proposal, token_ids: Sequence[int], belief: Belief = uncorrected
) -> Iterator[tuple[int, Draws]]:
    """Yield each child of a proposal, with the `Draws` before its draw.

    The object is the same for all children, and changes when the next child is taken.

    Args:
        token_ids: tokens of the tree's nodes.
    """
    q = proposal.q_probabilities.tolist()
    probability = dict(zip(proposal.q_token_ids.tolist(), q, strict=True))
    draws = Draws(q, proposal.kind, belief)
    for child in proposal.children:
        yield child, draws
        draws.take(probability[token_ids[child]])
