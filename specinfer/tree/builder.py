"""Builds a `TokenTree` node by node; `build` sorts its nodes depth first.

Proposals of the same token below the same parent share one node: a pass computes it once, and the acceptance
rule tries it once per proposal.
"""

from collections.abc import Sequence

import numpy as np

from specinfer.tree.draws import Draws
from specinfer.tree.shape import TreeLimits, depth_first
from specinfer.tree.token_tree import Float32, Int32, Proposal, ProposalKind, TokenTree


class TreeBuilder:
    """A tree under construction; nodes are numbered in order of insertion."""

    def __init__(self, root_token_id: int) -> None:
        self.token_ids: list[int] = [root_token_id]
        self.parents: list[int] = [-1]
        self.scores: list[float] = [1.0]
        self._index: dict[tuple[int, int], int] = {}
        self._proposals: list[Proposal] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def proposals(self) -> int:
        return len(self._proposals)

    def find(self, parent: int, token_id: int) -> int | None:
        return self._index.get((parent, token_id))

    def add(self, parent: int, token_id: int, score: float = 1.0) -> int:
        """Return the child of `parent` with this token; add a missing child.

        An existing child keeps the higher score. (`propose_points` and `propose_samples` never change it: a draw
        may cause a later proposal, and a candidate's score must not depend on draws after the candidate.)
        """
        node = self._index.get((parent, token_id))
        if node is not None:
            self.scores[node] = max(self.scores[node], score)
            return node
        node = len(self.token_ids)
        self._index[parent, token_id] = node
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.scores.append(score)
        return node

    def add_path(self, path: Sequence[int], score: float, limits: TreeLimits) -> None:
        """Add nodes along a path from the root, until a limit forbids one."""
        node = 0
        for token in path[: limits.depth]:
            child = self.find(node, token)
            if child is None:
                if len(self) > limits.nodes or self.parents.count(node) == limits.width:
                    return
                child = self.add(node, token, score)
            node = child

    def _first(self, parent: int, token_id: int, score: float) -> int:
        node = self.find(parent, token_id)
        return self.add(parent, token_id, score) if node is None else node

    def propose(self, proposal: Proposal) -> None:
        self._proposals.append(proposal)

    def propose_points(
        self, parent: int, token_ids: Sequence[int], scores: Sequence[float], speculator: int = 0
    ) -> list[int]:
        """Add children of `parent` as a proposal of points; return their nodes."""
        nodes = [self._first(parent, token, score) for token, score in zip(token_ids, scores, strict=True)]
        if nodes:
            self.propose(Proposal(parent, speculator, ProposalKind.POINT, tuple(dict.fromkeys(nodes))))
        return nodes

    def propose_samples(
        self,
        parent: int,
        kind: ProposalKind,
        draws: Sequence[int],
        q: tuple[Int32, Float32],
        speculator: int = 0,
    ) -> list[int]:
        """Add drawn children of `parent` as a proposal; return their distinct nodes.

        `draws` are token ids in draw order. A new node's score is the expected acceptance of its draw, estimated
        without its token (`specinfer.tree.draws`).
        """
        probability = dict(zip(q[0].tolist(), q[1].tolist(), strict=True))
        left, nodes = Draws(q[1].tolist(), kind), []
        for token in draws:
            nodes.append(self._first(parent, token, left.chance))
            left.take(probability[token])
        self.propose(Proposal(parent, speculator, kind, tuple(nodes), *q))
        return list(dict.fromkeys(nodes))

    def points(self) -> TokenTree:
        """Return the tree with all nodes as points."""
        return point_tree(self.token_ids, self.parents, self.scores, range(1, len(self)))

    def build(self, order: Sequence[int] = ()) -> TokenTree:
        """Return the tree with its nodes depth first, and `order` as `TokenTree.order`."""
        nodes = depth_first(self.parents)
        place = [0] * len(nodes)
        for new, old in enumerate(nodes):
            place[old] = new
        return TokenTree(
            np.array([self.token_ids[node] for node in nodes], np.int32),
            np.array([-1, *(place[self.parents[node]] for node in nodes[1:])], np.int32),
            tuple([p.moved(place) for p in self._proposals]),
            np.array([self.scores[node] for node in nodes], np.float32),
            tuple(order),
        )


def point_tree(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], nodes: Sequence[int]
) -> TokenTree:
    """Return a tree of points with some nodes of a larger tree.

    `nodes` are indices of the larger tree, ascending, without the root.
    """
    builder, place = TreeBuilder(tokens[0]), {0: 0}
    kids: dict[int, list[int]] = {}
    for node in nodes:
        kids.setdefault(parents[node], []).append(node)
    for parent, children in kids.items():
        placed = builder.propose_points(
            place[parent], [tokens[node] for node in children], [scores[node] for node in children]
        )
        place.update(zip(children, placed, strict=True))
    return builder.build()
