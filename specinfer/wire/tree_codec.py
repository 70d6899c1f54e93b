"""Encode and decode token trees and their limits.

Decoding only checks that numbers fit their types; call `TokenTree.validate` on received trees.
"""

from typing import Any

import numpy as np

from specinfer.errors import MalformedTreeError
from specinfer.tree import Proposal, ProposalKind, TokenTree, TreeLimits
from specinfer.v1 import speculator_pb2, tree_pb2, verifier_pb2

_NODE, _CANDIDATE, _SUPPORT = 5 + 10 + 4, 5 + 5, 5 + 4
"""Maximum encoded bytes of a node, candidate, and token of q."""
_PROPOSAL, _TREE = 40, 64
"""Maximum encoded bytes of other fields per proposal and tree."""
_ROOT_PARENTS, _ROOT_SCORES = np.array([-1], np.int32), np.ones(1, np.float32)
_ROOT_PARENTS.flags.writeable = _ROOT_SCORES.flags.writeable = False  # shared by all trees of plain decoding


def encode_tree(tree: TokenTree) -> tree_pb2.TokenTree:
    message = tree_pb2.TokenTree(
        token_ids=tree.token_ids.tolist(),
        parents=tree.parents.tolist(),
        scores=tree.scores.tolist(),
        order=tree.order,
    )
    for parent, speculator, kind, children, q_token_ids, q_probabilities, _ in tree.proposals:
        number: Any = int(kind)  # the enums share their numbers; a test compares them
        added = message.proposals.add(parent=parent, speculator=speculator, kind=number, children=children)
        if len(q_token_ids) or len(q_probabilities):
            added.q_token_ids.extend(q_token_ids.tolist())
            added.q_probabilities.extend(q_probabilities.tolist())
    return message


def max_bytes(tree: TokenTree) -> int:
    """Return the maximum bytes that a tree adds to a message.

    A number has at most five bytes. A candidate occurs twice, in its proposal and in `order`.
    """
    candidates = sum([len(proposal.children) for proposal in tree.proposals])
    support = sum([len(proposal.q_token_ids) for proposal in tree.proposals])
    return (
        _NODE * len(tree)
        + _PROPOSAL * len(tree.proposals)
        + _CANDIDATE * candidates
        + _SUPPORT * support
        + _TREE
    )


def decode_tree(message: tree_pb2.TokenTree, speculator: int | None = None) -> TokenTree:
    """Decode a tree; `speculator` replaces the number in all proposals unless None."""
    try:
        token_ids = np.array(message.token_ids[:], np.int64).astype(np.int32)
        if len(token_ids) == 1 and _is_bare_root(message):  # as in each plain step
            return TokenTree(token_ids, _ROOT_PARENTS, (), _ROOT_SCORES)
        scores = np.array(message.scores[:], np.float32)
        if not len(scores):
            scores = np.ones(len(token_ids), np.float32)
        return TokenTree(
            token_ids,
            np.array(message.parents[:], np.int32),
            tuple([_decode_proposal(proposal, speculator) for proposal in message.proposals]),
            scores,
            tuple(message.order[:]),
        )
    except (ValueError, OverflowError) as error:
        raise MalformedTreeError("tree", str(message)[:80], str(error)) from error


def _is_bare_root(message: tree_pb2.TokenTree) -> bool:
    """Return whether a message with one token encodes `TokenTree.root_only`."""
    bare = not message.proposals and not message.order
    return bare and message.parents[:] == [-1] and message.scores[:] in ([], [1.0])


def _decode_proposal(message: tree_pb2.Proposal, speculator: int | None) -> Proposal:
    whose = message.speculator if speculator is None else speculator
    start = message.parent, whose, ProposalKind(message.kind), tuple(message.children[:])
    if not message.q_token_ids and not message.q_probabilities:
        return Proposal(*start)
    return Proposal(
        *start,
        np.array(message.q_token_ids[:], np.int64).astype(np.int32),
        np.array(message.q_probabilities[:], np.float32),
    )


def decode_limits(message: speculator_pb2.DraftEntry | verifier_pb2.TreePlan) -> TreeLimits:
    """Decode a tree's limits; reduce its depth to its number of nodes."""
    width = 1 if message.shape == speculator_pb2.TREE_SHAPE_SEQUENCE else None
    depth = min(message.max_depth, message.node_budget)
    worth = message.min_path_probability, message.tokens_per_second
    return TreeLimits(message.node_budget, depth, width, *worth)
