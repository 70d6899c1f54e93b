"""The token tree (paper, Definition 3.1) as flat arrays in depth-first order.

    node 0   1    2     3    4          token_ids = [the, cat, sat, ran, dog]
         the-+-cat-+-sat                parents   = [ -1,   0,   1,   1,   0]
             |     +-ran
             +-dog

Node 0 is the root, the last committed token. Parents come before children. A `Proposal` records who
proposed which children of a node and *how they were chosen*, because that decides which acceptance
test is lossless. Data only: nothing here drafts, verifies or knows a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import MalformedTreeError

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

_NO_TOKENS: Int32 = np.zeros(0, np.int32)
_NO_PROBABILITIES: Float32 = np.zeros(0, np.float32)
_SUM_TOLERANCE = 1e-3
CANDIDATES_PER_NODE, SUPPORT_PER_NODE = 8, 1024
"""Most candidates, and most tokens of all q, for every node that a tree may have: repeated draws, several
speculators, and q of 1,024 tokens fit; a message that outgrows the batch's does not."""


Candidate = tuple[int, int]
"""One child of one proposal: (index of the proposal, place among its children)."""


class ProposalKind(IntEnum):
    """How the children of one node were chosen; the numbers are those of the wire."""

    POINT = 1
    """Deterministically (top-k, n-gram, retrieval): q is a point mass on each child in turn."""
    WITH_REPLACEMENT = 2
    """Independent draws from q; a token may have been drawn several times."""
    WITHOUT_REPLACEMENT = 3
    """Draws from q, each drawn token removed from q before the next."""


class Proposal(NamedTuple):
    """What one speculator proposed as continuations of node `parent`.

    `children` are node indices in draw order, repeats kept. `q_token_ids` and `q_probabilities` (each [K],
    empty for POINT) are the distribution that was really sampled from. `scores` are those of a merged
    tree's points by this speculator, where they differ from the tree's (see `merge_trees`). A tuple because
    every step makes some sixty of them: dataclasses take four times as long.
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
        """The same in a tree in which node v is called place[v].

        Args:
            place: names at least the parent and the children that are kept.
            speculator: whose it is from now on; None leaves that.
            count: how many of the children are kept; None keeps all.
        """
        parent, own, kind, children, q_token_ids, q_probabilities, scores = self
        return Proposal(
            place[parent],
            own if speculator is None else speculator,
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
    """[N] parent of each node; -1 for the root, smaller than the node's own index otherwise."""
    proposals: tuple[Proposal, ...]
    """Who proposed which children."""
    scores: Float32
    """[N] estimated probability that a node is accepted given its parent is. A hint, never a q."""
    order: tuple[int, ...] = ()
    """The order of all candidates: indices of proposals, each occurrence standing for the proposal's next
    child. Draws below a node are tried in this order, whoever made them. Empty: proposal by proposal."""

    @classmethod
    def root_only(cls, token_id: int) -> "TokenTree":
        """The tree of plain decoding."""
        return cls(np.array([token_id], np.int32), np.array([-1], np.int32), (), np.ones(1, np.float32))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def root_token_id(self) -> int:
        """The last committed token."""
        return int(self.token_ids[0])

    def proposals_by_parent(self) -> dict[int, list[Proposal]]:
        """All proposals for the children of each node."""
        result: dict[int, list[Proposal]] = {}
        for proposal in self.proposals:
            result.setdefault(proposal.parent, []).append(proposal)
        return result

    @property
    def has_draws(self) -> bool:
        """Whether any child was drawn."""
        return any(proposal.kind is not ProposalKind.POINT for proposal in self.proposals)

    def candidates(self) -> Iterator[Candidate]:
        """All candidates in their order."""
        if not self.order:
            for index, proposal in enumerate(self.proposals):
                yield from [(index, place) for place in range(len(proposal.children))]
            return
        places = [0] * len(self.proposals)
        for index in self.order:
            yield index, places[index]
            places[index] += 1

    def draws_by_parent(self) -> dict[int, list[Candidate]]:
        """The drawn candidates below each node that has any, in the order in which they are tried."""
        result: dict[int, list[Candidate]] = {}
        if self.has_draws:
            for index, place in self.candidates():
                if self.proposals[index].kind is not ProposalKind.POINT:
                    result.setdefault(self.proposals[index].parent, []).append((index, place))
        return result

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; empty for the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def sequence_of(self, node: int) -> tuple[int, ...]:
        """S_u of Definition 3.1: the tokens from the root to `node`."""
        return (self.root_token_id, *(int(self.token_ids[v]) for v in self.path_to(node)))

    def validate(self, vocab_size: int, max_nodes: int) -> None:
        """Checks a tree that came from outside.

        Args:
            vocab_size: token ids must be smaller.
            max_nodes: most nodes allowed, root included.

        Raises:
            MalformedTreeError: naming the first broken invariant.
        """
        _check_nodes(self, vocab_size, max_nodes)
        _check_sizes(self, max_nodes)
        parents = self.parents.tolist()
        proposed: set[int] = set()
        for index, proposal in enumerate(self.proposals):
            _check_proposal(self, parents, index, vocab_size)
            proposed.update(proposal.children)
        if len(proposed) < len(self) - 1:
            orphan = min(set(range(1, len(self))) - proposed)
            raise MalformedTreeError("tree.proposals", orphan, "node is in no proposal")
        if self.order or self.has_draws:
            _check_order(self)


def _check_nodes(tree: TokenTree, vocab_size: int, max_nodes: int) -> None:
    n = len(tree)
    if n == 0 or len(tree.parents) != n or len(tree.scores) not in (0, n):
        sizes = (n, len(tree.parents), len(tree.scores))
        raise MalformedTreeError("tree.(token_ids, parents, scores)", sizes, "lengths must agree and be > 0")
    if n > max_nodes:
        raise MalformedTreeError("tree.nodes", n, f"more than the {max_nodes} allowed")
    token_ids, parents = tree.token_ids.tolist(), tree.parents.tolist()  # short: quicker than arrays
    for node, token in enumerate(token_ids):
        if not 0 <= token < vocab_size:
            raise MalformedTreeError(
                f"tree.token_ids[{node}]", token, f"not in the vocabulary of {vocab_size}"
            )
    if parents[0] != -1:
        raise MalformedTreeError("tree.parents[0]", parents[0], "the root has no parent (-1)")
    for node, parent in enumerate(parents[1:], 1):
        if not 0 <= parent < node:
            raise MalformedTreeError(f"tree.parents[{node}]", parent, "parents come before children")
    if len(set(zip(parents, token_ids, strict=True))) != n:
        raise MalformedTreeError("tree.token_ids", token_ids, "two siblings have the same token")
    for node, score in enumerate(tree.scores.tolist()):
        if not 0 <= score <= 1:  # a NaN makes this false
            raise MalformedTreeError(f"tree.scores[{node}]", score, "must be in [0, 1]")


def _check_sizes(tree: TokenTree, max_nodes: int) -> None:
    candidates = sum([len(proposal.children) for proposal in tree.proposals])
    support = sum([len(proposal.q_token_ids) for proposal in tree.proposals])
    for name, found, most in (
        ("candidates", max(candidates, len(tree.proposals)), CANDIDATES_PER_NODE * max_nodes),
        ("q_token_ids", support, SUPPORT_PER_NODE * max_nodes),
    ):
        if found > most:
            raise MalformedTreeError(
                f"tree.{name}", found, f"more than the {most} allowed for {max_nodes} nodes"
            )


def _check_order(tree: TokenTree) -> None:
    """Every candidate stands in it once, behind one that leads to its parent."""
    counts = [0] * len(tree.proposals)
    for index in tree.order:
        if not 0 <= index < len(counts):
            raise MalformedTreeError("tree.order", index, f"there are {len(counts)} proposals")
        counts[index] += 1
    if tree.order and counts != [len(proposal.children) for proposal in tree.proposals]:
        raise MalformedTreeError("tree.order", tree.order, "every child of every proposal stands in it once")
    reached = {0}
    for index, place in tree.candidates():
        proposal = tree.proposals[index]
        if proposal.parent not in reached:
            raise MalformedTreeError("tree.order", tree.order, f"children before node {proposal.parent}")
        reached.add(proposal.children[place])


def _check_proposal(tree: TokenTree, parents: Sequence[int], index: int, vocab_size: int) -> None:
    name, proposal = f"tree.proposals[{index}]", tree.proposals[index]
    if not proposal.children:
        raise MalformedTreeError(f"{name}.children", proposal.parent, "proposes nothing below this node")
    for child in proposal.children:
        if not 0 < child < len(parents) or parents[child] != proposal.parent:
            raise MalformedTreeError(f"{name}.children", child, f"not a child of node {proposal.parent}")
    repeats = len(set(proposal.children)) != len(proposal.children)
    if repeats and proposal.kind is not ProposalKind.WITH_REPLACEMENT:
        raise MalformedTreeError(
            f"{name}.children", proposal.children, "repeats need drawing with replacement"
        )
    if proposal.kind is ProposalKind.POINT:
        if len(proposal.q_token_ids) or len(proposal.q_probabilities):
            raise MalformedTreeError(
                f"{name}.q_token_ids", len(proposal.q_token_ids), "a point proposal has no q"
            )
        return
    drawn = [int(tree.token_ids[child]) for child in proposal.children]
    _check_distribution(name, proposal, drawn, vocab_size)


def _check_distribution(name: str, proposal: Proposal, drawn: Sequence[int], vocab_size: int) -> None:
    """In plain Python: q is too short for arrays to be quicker."""
    ids, q = proposal.q_token_ids.tolist(), proposal.q_probabilities.tolist()
    if len(ids) == 0 or len(ids) != len(q):
        raise MalformedTreeError(f"{name}.q", (len(ids), len(q)), "needs as many ids as probabilities")
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= vocab_size:
        raise MalformedTreeError(f"{name}.q_token_ids", ids, "must be distinct ids of the vocabulary")
    if not abs(sum(q) - 1) <= _SUM_TOLERANCE or min(q) < 0:  # a NaN makes the first comparison false
        raise MalformedTreeError(f"{name}.q_probabilities", q, "must be >= 0 and sum to one")
    if not all(token in ids and q[ids.index(token)] > 0 for token in drawn):
        raise MalformedTreeError(f"{name}.children", drawn, "a child has no probability under q")


def distribution(token_ids: Sequence[int], probabilities: Sequence[float]) -> tuple[Int32, Float32]:
    """A draft distribution in the form `Proposal` keeps it."""
    return np.asarray(token_ids, np.int32), np.asarray(probabilities, np.float32)
