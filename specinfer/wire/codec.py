"""Encode and decode token trees, their limits, sampling parameters and constraints.

Decoding only checks that numbers fit their types; call `TokenTree.validate` on received trees.
"""

import json
from functools import lru_cache
from typing import Any

import numpy as np

from specinfer.errors import MalformedTreeError
from specinfer.request.sampling import Sampling
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import Proposal, ProposalKind, TokenTree, TreeLimits
from specinfer.v1 import common_pb2, speculator_pb2, tree_pb2, verifier_pb2

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


_NUMBERS = [f for f in common_pb2.SamplingParams.DESCRIPTOR.fields if f.name not in ("seed", "logit_bias")]
_PLAIN = {f.name for f in _NUMBERS} - {"presence_penalty", "frequency_penalty", "repetition_penalty"}
"""Fields that do not depend on earlier tokens."""


def encode_sampling(
    sampling: Sampling, with_seed: bool = True, with_adjustments: bool = True
) -> common_pb2.SamplingParams:
    """Return the message of sampling parameters.

    Args:
        with_seed: False if the receiver must not know the target's random numbers.
        with_adjustments: False if the receiver ignores biases and penalties.
    """
    adjusts = with_adjustments and sampling.adjusts
    names = {f.name for f in _NUMBERS} if adjusts else _PLAIN
    return common_pb2.SamplingParams(
        **{name: getattr(sampling, name) for name in names},
        seed=sampling.seed if with_seed else None,
        logit_bias=dict(sampling.logit_bias) if adjusts else None,
    )


def decode_sampling(message: common_pb2.SamplingParams, default_seed: int = 0) -> Sampling:
    """Decode sampling parameters; an unset temperature is 1.

    Results are cached, since every step of a request has the same message.
    """
    return _decoded(message.SerializeToString(), default_seed)


@lru_cache(maxsize=1024)
def _decoded(data: bytes, default_seed: int) -> Sampling:
    message = common_pb2.SamplingParams.FromString(data)
    set_fields = [f.name for f in _NUMBERS if not f.has_presence or message.HasField(f.name)]
    given = {name: getattr(message, name) for name in set_fields}
    if not message.repetition_penalty:  # 0 means "not set", too
        given.pop("repetition_penalty", None)
    seed = message.seed if message.HasField("seed") else default_seed
    return Sampling(**given, seed=seed, logit_bias=tuple(sorted(message.logit_bias.items())))


def encode_constraint(constraint: Constraint) -> common_pb2.Constraint:
    if constraint.kind is ConstraintKind.CHOICE:
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=json.loads(constraint.source)))
    fields: dict[str, Any] = {constraint.kind.value: constraint.source}
    return common_pb2.Constraint(**fields)


def decode_constraint(message: common_pb2.Constraint) -> Constraint | None:
    """Return the constraint of a message; None if no kind is set."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == ConstraintKind.CHOICE:
        return Constraint.choice(list(message.choice.texts))
    return Constraint(ConstraintKind(kind), getattr(message, kind))
