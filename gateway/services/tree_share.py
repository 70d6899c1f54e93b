"""What of a step's message to the verifier one speculator's tree may take, and whether a tree is sound.

A tree within the bounds of `TokenTree.validate` may still be large, and a batch has many of many speculators.
So the bounds of a request's merged tree are divided among the speculators of the pool, and the bytes of a
step among them and its requests: whatever they send within their shares, the message stays within its limit.
"""

from dataclasses import dataclass

from specinfer.errors import MalformedTreeError
from specinfer.scheduling.entries import StepEntry
from specinfer.speculators.drafts import sound_draft
from specinfer.tree import TokenTree
from specinfer.tree.check import CANDIDATES_PER_NODE, SUPPORT_PER_NODE
from specinfer.v1 import tree_pb2
from specinfer.wire.tree_codec import most_bytes


@dataclass(frozen=True, slots=True)
class TreeShare:
    """What one speculator may send for one request."""

    candidates: int
    """Children of all proposals, repeats counted."""
    support: int
    """Tokens of all q."""
    encoded_bytes: int
    """Of its part of the merged tree."""

    @classmethod
    def of(cls, max_nodes: int, step_bytes: int, requests: int, speculators: int) -> "TreeShare":
        """Of a step of so many requests.

        Args:
            max_nodes: most nodes of a tree that the verifier accepts, root included.
            step_bytes: what the trees of a step may take in the message.
            requests: at least one.
            speculators: of the whole pool, at least one.
        """
        return cls(
            CANDIDATES_PER_NODE * max_nodes // speculators,
            SUPPORT_PER_NODE * max_nodes // speculators,
            step_bytes // (requests * speculators),
        )

    def check(self, tree: TokenTree) -> None:
        """Checks a tree that is valid otherwise.

        Raises:
            MalformedTreeError: naming the bound that it breaks.
        """
        found = {
            "candidates": (sum([len(p.children) for p in tree.proposals]), self.candidates),
            "q_token_ids": (sum([len(p.q_token_ids) for p in tree.proposals]), self.support),
            "bytes": (most_bytes(tree), self.encoded_bytes),
        }
        for name, (count, most) in found.items():
            if count > most:
                raise MalformedTreeError(
                    f"tree.{name}", count, f"more than this speculator's share of {most}"
                )


def sound_tree(
    message: tree_pb2.TokenTree, speculator: int, entry: StepEntry, vocab_size: int, share: TreeShare
) -> TokenTree:
    """The tree of a message, which keeps to what was asked for and to the speculator's share.

    Raises:
        MalformedTreeError: naming the first broken invariant.
    """
    tree = sound_draft(message, speculator, entry.delta[-1], entry.limits, vocab_size)
    share.check(tree)
    return tree
