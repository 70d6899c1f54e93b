"""What smaller trees, or fewer speculators, would have brought of what a tree did. Pure."""

from collections.abc import Sequence

from specinfer.planning.latency import SpeculatorSet
from specinfer.tree import TokenTree


def nodes_needed(tree: TokenTree, accepted: Sequence[int], asked: SpeculatorSet) -> list[int]:
    """How large a tree of these speculators alone has to be for the first accepted token, the first two, and
    so on, up to the first that none of them proposed. Nodes are taken by their path probabilities."""
    chances, kept = _chances(tree), _proposed_by(tree, asked)
    ranking = sorted(kept, key=lambda node: (-chances[node], node))
    rank = {node: place for place, node in enumerate(ranking, 1)}
    needed: list[int] = []
    for node in accepted:
        if node not in rank:
            break
        needed.append(max(rank[node], needed[-1] if needed else 0))
    return needed


def ranked_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """The same of the whole tree, but for what a constraint forces, which takes no place."""
    chances, forced = _chances(tree), tree.forced
    ranking = sorted(set(range(1, len(tree))) - forced, key=lambda node: (-chances[node], node))
    rank = {node: place for place, node in enumerate(ranking, 1)}
    needed: list[int] = []
    for node in accepted:
        needed.append(max(rank[node], needed[-1] if needed else 0))
    return needed


def _proposed_by(tree: TokenTree, asked: SpeculatorSet) -> set[int]:
    """Nodes to which these speculators alone lead."""
    own = {child for p in tree.proposals if p.speculator in asked for child in p.children}
    kept = {0}
    for node, parent in enumerate(tree.parents.tolist()):
        if node in own and parent in kept:
            kept.add(node)
    return kept - {0}


def _chances(tree: TokenTree) -> list[float]:
    """Path probabilities of the nodes."""
    chances: list[float] = []
    for parent, score in zip(tree.parents.tolist(), tree.scores.tolist(), strict=True):
        chances.append(score * chances[parent] if parent >= 0 else 1.0)
    return chances
