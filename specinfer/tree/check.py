"""Checks token trees from drafters or messages."""

from collections.abc import Sequence

from specinfer.errors import MalformedTreeError
from specinfer.tree.shape import TreeLimits, depths
from specinfer.tree.token_tree import Proposal, ProposalKind, TokenTree

_SUM_TOLERANCE = 1e-3
CANDIDATES_PER_NODE, SUPPORT_PER_NODE = 8, 1024
"""Maximum candidates, and tokens of all q together, per allowed node.

They admit repeated draws, several speculators and q of 1,024 tokens, and bound the size of a tree's message.
"""


def check_tree(tree: TokenTree, vocab_size: int, max_nodes: int) -> None:
    """Check the invariants of `TokenTree` and `Proposal`, and a tree's size.

    Args:
        vocab_size: size of the target's vocabulary.
        max_nodes: maximum nodes, root included.
    """
    _check_nodes(tree, vocab_size, max_nodes)
    _check_sizes(tree, max_nodes)
    parents = tree.parents.tolist()
    proposed: set[int] = set()
    for index, proposal in enumerate(tree.proposals):
        _check_proposal(tree, parents, index, vocab_size)
        proposed.update(proposal.children)
    if len(proposed) < len(tree) - 1:
        orphan = min(set(range(1, len(tree))) - proposed)
        raise MalformedTreeError("tree.proposals", orphan, "every node but the root must be in a proposal")
    if tree.order or tree.has_draws:
        _check_order(tree)


def check_draft(tree: TokenTree, root: int, limits: TreeLimits, vocab_size: int) -> None:
    """Check a drafter's tree against its request's context and limits.

    Args:
        root: the last committed token.
        limits: limits of the request's tree.
        vocab_size: size of the target's vocabulary.
    """
    check_tree(tree, vocab_size, limits.nodes + 1)
    if tree.root_token_id != root:  # a late draft, for an earlier context
        raise MalformedTreeError("tree.token_ids[0]", tree.root_token_id, "must be the last committed token")
    depth = int(depths(tree.parents).max())
    if depth > limits.depth:
        raise MalformedTreeError("tree.depth", depth, f"must be at most {limits.depth}")


def _check_nodes(tree: TokenTree, vocab_size: int, max_nodes: int) -> None:
    n = len(tree)
    if n == 0 or len(tree.parents) != n or len(tree.scores) not in (0, n):
        sizes = (n, len(tree.parents), len(tree.scores))
        raise MalformedTreeError("tree.(token_ids, parents, scores)", sizes, "lengths must agree and be > 0")
    if n > max_nodes:
        raise MalformedTreeError("tree.nodes", n, f"must be at most {max_nodes}, root included")
    token_ids, parents = tree.token_ids.tolist(), tree.parents.tolist()  # short: quicker than arrays
    for node, token in enumerate(token_ids):
        if not 0 <= token < vocab_size:
            raise MalformedTreeError(
                f"tree.token_ids[{node}]", token, f"must be a token id from 0 to {vocab_size - 1}"
            )
    if parents[0] != -1:
        raise MalformedTreeError("tree.parents[0]", parents[0], "must be -1: the root has no parent")
    for node, parent in enumerate(parents[1:], 1):
        if not 0 <= parent < node:
            raise MalformedTreeError(f"tree.parents[{node}]", parent, f"must be from 0 to {node - 1}")
    if len(set(zip(parents, token_ids, strict=True))) != n:
        raise MalformedTreeError("tree.token_ids", token_ids, "siblings must have different tokens")
    for node, score in enumerate(tree.scores.tolist()):
        if not 0 <= score <= 1:  # a NaN makes this false
            raise MalformedTreeError(f"tree.scores[{node}]", score, "must be in [0, 1]")


def _check_sizes(tree: TokenTree, max_nodes: int) -> None:
    candidates = sum([len(proposal.children) for proposal in tree.proposals])
    support = sum([len(proposal.q_token_ids) for proposal in tree.proposals])
    for name, size, limit in (
        ("candidates", max(candidates, len(tree.proposals)), CANDIDATES_PER_NODE * max_nodes),
        ("q_token_ids", support, SUPPORT_PER_NODE * max_nodes),
    ):
        if size > limit:
            raise MalformedTreeError(
                f"tree.{name}", size, f"must be at most {limit} for a tree of {max_nodes} nodes"
            )


def _check_order(tree: TokenTree) -> None:
    """Check that `order` has all candidates once, each after its parent node."""
    counts = [0] * len(tree.proposals)
    for index in tree.order:
        if not 0 <= index < len(counts):
            raise MalformedTreeError("tree.order", index, f"must be from 0 to {len(counts) - 1}")
        counts[index] += 1
    if tree.order and counts != [len(proposal.children) for proposal in tree.proposals]:
        raise MalformedTreeError("tree.order", tree.order, "must have each proposal's index once per child")
    reached = {0}
    for index, place in tree.candidates():
        proposal = tree.proposals[index]
        if proposal.parent not in reached:
            raise MalformedTreeError(
                "tree.order", tree.order, f"must have node {proposal.parent} before its children"
            )
        reached.add(proposal.children[place])


def _check_proposal(tree: TokenTree, parents: Sequence[int], index: int, vocab_size: int) -> None:
    name, proposal = f"tree.proposals[{index}]", tree.proposals[index]
    if not proposal.children:
        raise MalformedTreeError(f"{name}.children", (), f"must name a child of node {proposal.parent}")
    for child in proposal.children:
        if not 0 < child < len(parents) or parents[child] != proposal.parent:
            raise MalformedTreeError(f"{name}.children", child, f"must be a child of node {proposal.parent}")
    repeats = len(set(proposal.children)) != len(proposal.children)
    if repeats and proposal.kind is not ProposalKind.WITH_REPLACEMENT:
        raise MalformedTreeError(
            f"{name}.children", proposal.children, "only draws with replacement may repeat a child"
        )
    if proposal.kind is ProposalKind.POINT:
        if len(proposal.q_token_ids) or len(proposal.q_probabilities):
            raise MalformedTreeError(
                f"{name}.q_token_ids", len(proposal.q_token_ids), "must be empty in a point proposal"
            )
        return
    drawn = [int(tree.token_ids[child]) for child in proposal.children]
    _check_distribution(name, proposal, drawn, vocab_size)


def _check_distribution(name: str, proposal: Proposal, drawn: Sequence[int], vocab_size: int) -> None:
    ids, q = proposal.q_token_ids.tolist(), proposal.q_probabilities.tolist()
    if len(ids) == 0 or len(ids) != len(q):
        raise MalformedTreeError(
            f"{name}.q", (len(ids), len(q)), "must have as many ids as probabilities, at least one"
        )
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= vocab_size:
        reason = f"must be distinct, from 0 to {vocab_size - 1}"
        raise MalformedTreeError(f"{name}.q_token_ids", ids, reason)
    if not abs(sum(q) - 1) <= _SUM_TOLERANCE or min(q) < 0:  # a NaN makes the first comparison false
        raise MalformedTreeError(f"{name}.q_probabilities", q, "must be >= 0 and sum to one")
    if not all(token in ids and q[ids.index(token)] > 0 for token in drawn):
        raise MalformedTreeError(f"{name}.children", drawn, "each drawn token must have q above 0")
