"""The token tree (paper, Definition 3.1) as flat arrays in depth-first order.

    node 0   1    2     3    4          token_ids = [the, cat, sat, ran, dog]
         the-+-cat-+-sat                parents   = [ -1,   0,   1,   1,   0]
             |     +-ran
             +-dog

Node 0 is the root, the last committed token. Parents come before children. A `Proposal` records which
speculator proposed which children of a node, and *how it chose them*: that decides which acceptance test is
lossless.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

_NO_TOKENS: Int32 = np.zeros(0, np.int32)
_NO_PROBABILITIES: Float32 = np.zeros(0, np.float32)

NOBODY = 2**32 - 1
"""Speculator index of nodes that constraints force (`specinfer.tree.constrained`)."""

Candidate = tuple[int, int]
"""A proposed child: (index of the proposal, index among the proposal's children)."""


class ProposalKind(IntEnum):
    """Kind of choice of a node's children; numbers as in `specinfer.v1`."""

    POINT = 1
    """Deterministic choice (top-k, n-gram, retrieval): each child is a point mass."""
    WITH_REPLACEMENT = 2
    """Independent draws from q; a token may have been drawn several times."""
    WITHOUT_REPLACEMENT = 3
    """Draws from q, each drawn token removed from q before the next."""


class Proposal(NamedTuple):
    """One speculator's proposal of children of node `parent`.

    `children` are node indices in draw order, with repeats. `q_token_ids` and `q_probabilities` (each [K], empty
    for POINT) are the distribution from which the drafter sampled. `scores` are this speculator's scores of the
    children; only merged trees with draws have them (see `merge_trees`). A tuple, as a step makes about sixty
    proposals and dataclasses take four times as long.
    """

    parent: int
    speculator: int
    kind: ProposalKind
    children: tuple[int, ...]
    q_token_ids: Int32 = _NO_TOKENS
    q_probabilities: Float32 = _NO_PROBABILITIES
    scores: tuple[float, ...] = ()

    def moved(
        self,
        place: Sequence[int] | Mapping[int, int],
        speculator: int | None = None,
        count: int | None = None,
    ) -> "Proposal":
        """Return the proposal with each node v renumbered to place[v].

        Args:
            place: new indices, at least of the parent and of the kept children.
            speculator: new index of the speculator; None: unchanged.
            count: number of children to keep; None: all.
        """
        parent, previous, kind, children, q_token_ids, q_probabilities, scores = self
        return Proposal(
            place[parent],
            previous if speculator is None else speculator,
            kind,
            tuple([place[child] for child in children[:count]]),
            q_token_ids,
            q_probabilities,
            scores[:count],
        )


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A token tree of N nodes, root included."""

    token_ids: Int32
    """[N] token of each node."""
    parents: Int32
    """[N] parent of each node, a smaller index; -1 for the root."""
    proposals: tuple[Proposal, ...]
    scores: Float32
    """[N] estimated probability of acceptance if the parent is accepted; not q."""
    order: tuple[int, ...] = ()
    """Order of candidates: a proposal's index stands for its next child."""

    @classmethod
    def root_only(cls, token_id: int) -> "TokenTree":
        """Return the tree without drafts, for plain decoding."""
        return cls(np.array([token_id], np.int32), np.array([-1], np.int32), (), np.ones(1, np.float32))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def root_token_id(self) -> int:
        """The last committed token."""
        return int(self.token_ids[0])

    def proposals_by_parent(self) -> dict[int, list[Proposal]]:
        result: dict[int, list[Proposal]] = {}
        for proposal in self.proposals:
            result.setdefault(proposal.parent, []).append(proposal)
        return result

    @property
    def has_draws(self) -> bool:
        """True if any child was drawn."""
        return any(proposal.kind is not ProposalKind.POINT for proposal in self.proposals)

    @property
    def forced(self) -> frozenset[int]:
        """Nodes that a constraint forces (`NOBODY` has proposed them)."""
        return frozenset(c for p in self.proposals if p.speculator == NOBODY for c in p.children)

    def candidates(self) -> Iterator[Candidate]:
        """Yield all candidates, in the order in which the verifier tries draws."""
        if not self.order:
            for index, proposal in enumerate(self.proposals):
                yield from [(index, place) for place in range(len(proposal.children))]
            return
        places = [0] * len(self.proposals)
        for index in self.order:
            yield index, places[index]
            places[index] += 1

    def draws_by_parent(self) -> dict[int, list[Candidate]]:
        """Return the drawn candidates by parent node, in the order of `candidates`."""
        result: dict[int, list[Candidate]] = {}
        if self.has_draws:
            for index, place in self.candidates():
                if self.proposals[index].kind is not ProposalKind.POINT:
                    result.setdefault(self.proposals[index].parent, []).append((index, place))
        return result

    def path_to(self, node: int) -> list[int]:
        """Return nodes from the root's child to `node`; empty for the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def sequence_of(self, node: int) -> tuple[int, ...]:
        """Return S_u of Definition 3.1: the tokens from the root to `node`."""
        return (self.root_token_id, *(int(self.token_ids[v]) for v in self.path_to(node)))


def distribution(token_ids: Sequence[int], probabilities: Sequence[float]) -> tuple[Int32, Float32]:
    """Return q as a `Proposal`'s arrays: [K] token ids, [K] probabilities."""
    return np.asarray(token_ids, np.int32), np.asarray(probabilities, np.float32)
