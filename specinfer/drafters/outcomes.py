"""Outcomes of a tree whose verdict is still to come, by their probability. Pure.

An outcome is (accepted node, bonus token). Its probability is that of the path to the node, times that of the bonus
token behind it; a bonus token is none of the node's children, which would have been accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specinfer.errors import InvalidInputError
from specinfer.tree import TokenTree

MOST_ENDS = 8
"""Nodes of one tree behind which bonus tokens are guessed."""
_LEAST_END, _LEAST = 0.02, 0.005
"""Least probability that a path ends at such a node; of an outcome that is drafted for."""
_LEAST_REST = 0.02
"""Least probability that none of a node's children is accepted, whatever their scores say."""


class VerdictOutcome(NamedTuple):
    """Tokens that a verdict may add to the context."""

    tokens: tuple[int, ...]
    """Tokens of the accepted nodes, and the bonus token."""
    probability: float


@dataclass(frozen=True)
class PendingTree:
    """A tree that the verifier works on, as flat arrays."""

    token_ids: Sequence[int]
    parents: Sequence[int]
    scores: Sequence[float]
    """Estimated probability of each node that it is accepted given that its parent is."""
    max_positions: int
    """Context positions that drafts may reach."""

    def check(self) -> None:
        """Check a tree that comes from outside.

        Raises:
            InvalidInputError: if it is no tree.
        """
        count = len(self.token_ids)
        if not count or len(self.parents) != count or len(self.scores) != count:
            raise InvalidInputError("pending.token_ids", count, "not as many as parents and scores, or none")
        if any(not -1 <= p < i or (p < 0) != (i == 0) for i, p in enumerate(self.parents)):
            raise InvalidInputError("pending.parents", list(self.parents), "are not those of a tree")

    @cached_property
    def reached(self) -> list[float]:
        """Probability of each node that its whole path is accepted."""
        found: list[float] = []
        for parent, score in zip(self.parents, self.scores, strict=True):
            found.append(found[parent] * min(max(score, 0.0), 1.0) if parent >= 0 else 1.0)
        return found

    def path(self, node: int) -> tuple[int, ...]:
        """Return the tokens of the nodes below the root down to this one."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tuple(tokens[::-1])

    def children(self, node: int) -> set[int]:
        """Return the tokens of a node's children."""
        pairs = zip(self.token_ids, self.parents, strict=True)
        return {token for token, parent in pairs if parent == node}

    def ends(self) -> list[int]:
        """Return the nodes at which the accepted path most probably ends, most probable first."""
        rest = [1.0] * len(self.token_ids)
        for parent, score in zip(self.parents[1:], self.scores[1:], strict=True):
            rest[parent] -= score
        ends = [p * max(left, _LEAST_REST) for p, left in zip(self.reached, rest, strict=True)]
        likely = [node for node, end in enumerate(ends) if end >= _LEAST_END]
        return sorted(likely, key=lambda node: -ends[node])[:MOST_ENDS]

    def outcomes(self, guesses: Mapping[int, Sequence[TokenTree]]) -> list[VerdictOutcome]:
        """Return outcomes, most probable first; `guesses` are drafts of bonus tokens by the node before them."""
        found: dict[tuple[int, ...], float] = {}
        for node, trees in guesses.items():
            path, known = self.path(node), self.children(node)
            for tree in trees:
                for token, score in _first_level(tree):
                    if token not in known:
                        tokens = (*path, token)
                        found[tokens] = max(found.get(tokens, 0.0), self.reached[node] * score)
        ranked = sorted(found.items(), key=lambda item: -item[1])
        return [VerdictOutcome(tokens, p) for tokens, p in ranked if p >= _LEAST]


def _first_level(tree: TokenTree) -> list[tuple[int, float]]:
    """Return tokens and scores of the root's children."""
    rows = zip(tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist(), strict=True)
    return [(token, score) for token, parent, score in rows if parent == 0]
