"""Token trees: plain data in numpy arrays, and pure functions on it (paper, section 3)."""

from specinfer.tree.builder import TreeBuilder
from specinfer.tree.merge import DRAW_PRIORS, cut_trees, merge_trees, truncate
from specinfer.tree.shape import ExpansionVector, TreeLimits
from specinfer.tree.token_tree import Proposal, ProposalKind, TokenTree

__all__ = [
    "DRAW_PRIORS",
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
