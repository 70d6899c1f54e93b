"""If speculators respect their shares, the message to the verifier never exceeds its limit."""

import numpy as np
import pytest

from specinfer.errors import MalformedTreeError
from specinfer.remote.drafts import TreeShare
from specinfer.remote.policy import PoolPolicy
from specinfer.tree import Proposal, ProposalKind, TokenTree, check_tree, merge_trees
from specinfer.tree.check import CANDIDATES_PER_NODE, SUPPORT_PER_NODE
from specinfer.v1 import verifier_pb2
from specinfer.wire.codec import encode_tree, max_bytes

LARGEST_TOKEN = 2**31 - 1


def fan(speculator: int, nodes: int, support: int) -> TokenTree:
    """Return a root with `nodes` children, each drawn by its own proposal from a q of `support` large token ids."""
    tokens = np.arange(LARGEST_TOKEN - nodes + 1, LARGEST_TOKEN + 1, dtype=np.int64).astype(np.int32)
    ids = np.arange(LARGEST_TOKEN - support + 1, LARGEST_TOKEN + 1, dtype=np.int64).astype(np.int32)
    q = np.full(support, 1 / support, np.float32)
    kind = ProposalKind.WITHOUT_REPLACEMENT
    return TokenTree(
        np.concatenate([[1], tokens]).astype(np.int32),
        np.array([-1] + [0] * nodes, np.int32),
        tuple(Proposal(0, speculator, kind, (node,), ids, q) for node in range(1, nodes + 1)),
        np.ones(nodes + 1, np.float32),
    )


@pytest.mark.parametrize(("requests", "speculators"), [(1, 1), (3, 2), (8, 3)])
def test_the_largest_trees_of_all_speculators_fit(requests: int, speculators: int) -> None:
    step_bytes = 2**20
    share = TreeShare.of(128, step_bytes, requests, speculators)
    nodes, support = 60, 0
    while max_bytes(fan(0, nodes, nodes + support + 1)) <= share.encoded_bytes and support + nodes < 900:
        support += 1
    trees = [(s, fan(s, nodes, nodes + support)) for s in range(speculators)]
    for _, tree in trees:
        check_tree(tree, LARGEST_TOKEN + 1, 64)
        share.check(tree)
    merged = encode_tree(merge_trees(trees))
    request = verifier_pb2.VerifyRequest(entries=[verifier_pb2.VerifyEntry(tree=merged)] * requests)
    assert request.ByteSize() <= step_bytes
    assert request.ByteSize() > step_bytes / 10, "the bound is not far too low"
    check_tree(merge_trees(trees), LARGEST_TOKEN + 1, 128)


def test_the_default_leaves_room_for_contexts() -> None:
    """2,048 context tokens of five bytes and 64 ids of 256 bytes are far below the other 4 MiB."""
    assert PoolPolicy(97, "").step_bytes + 2048 * 5 + 64 * 256 < 15 * 2**20


def test_a_tree_over_its_share_is_malformed_by_name() -> None:
    tree = fan(0, 8, 40)
    for share, name in (
        (TreeShare(7, 10**6, 10**6), "tree.candidates = 8"),
        (TreeShare(8, 319, 10**6), "tree.q_token_ids = 320"),
        (TreeShare(8, 320, max_bytes(tree) - 1), "tree.bytes"),
    ):
        with pytest.raises(MalformedTreeError, match=name):
            share.check(tree)
    TreeShare(8, 320, max_bytes(tree)).check(tree)


def test_shares_add_up_to_what_the_verifier_accepts() -> None:
    share = TreeShare.of(128, 2**20, 1, 3)
    assert 3 * share.candidates <= CANDIDATES_PER_NODE * 128
    assert 3 * share.support <= SUPPORT_PER_NODE * 128
