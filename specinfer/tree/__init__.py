"""Token trees in numpy arrays, and functions on them (paper, section 3)."""

from specinfer.tree.builder import TreeBuilder
from specinfer.tree.check import check_draft, check_tree
from specinfer.tree.constrained import TokenMatcher, with_forced, without_forbidden
from specinfer.tree.cut import cut_trees, keep, truncate
from specinfer.tree.draws import Draws
from specinfer.tree.merge import merge_trees
from specinfer.tree.shape import FREE, ExpansionVector, TreeLimits, TreeWorth, depth_limit
from specinfer.tree.token_tree import NOBODY, Candidate, Proposal, ProposalKind, TokenTree

__all__ = [
    "FREE",
    "NOBODY",
    "Candidate",
    "Draws",
    "ExpansionVector",
    "Proposal",
    "ProposalKind",
    "TokenMatcher",
    "TokenTree",
    "TreeBuilder",
    "TreeLimits",
    "TreeWorth",
    "check_draft",
    "check_tree",
    "cut_trees",
    "depth_limit",
    "keep",
    "merge_trees",
    "truncate",
    "with_forced",
    "without_forbidden",
]
