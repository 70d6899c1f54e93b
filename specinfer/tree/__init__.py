"""Token trees: plain data in numpy arrays, and pure functions on it (paper, section 3)."""

from specinfer.tree.builder import TreeBuilder
from specinfer.tree.draws import Draws
from specinfer.tree.merge import cut_trees, merge_trees, truncate
from specinfer.tree.shape import ExpansionVector, TreeLimits
from specinfer.tree.token_tree import Proposal, ProposalKind, TokenTree

__all__ = [
    "Draws",
    "ExpansionVector",
    "Proposal",
    "ProposalKind",
    "TokenTree",
    "TreeBuilder",
    "TreeLimits",
    "cut_trees",
    "merge_trees",
    "truncate",
]
