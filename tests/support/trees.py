"""Trees for tests: the small example of the docs, and a hypothesis strategy for random trees."""

import numpy as np
from hypothesis import strategies as st

from specinfer.tree import ProposalKind, TokenTree, TreeBuilder

THE, CAT, SAT, RAN, DOG = 1, 2, 3, 4, 5
VOCABULARY = 12


def example_tree() -> TokenTree:
    """the-+-cat-+-sat
    |     +-ran
    +-dog"""
    builder = TreeBuilder(THE)
    cat, _ = builder.propose_points(0, [CAT, DOG], [0.6, 0.25])
    builder.propose_points(cat, [SAT, RAN], [0.5, 0.4])
    return builder.build()


@st.composite
def trees(draw: st.DrawFn, root: int | None = None, max_nodes: int = 24) -> TokenTree:
    """Draw a random valid tree with proposals of every kind."""
    builder = TreeBuilder(draw(st.integers(0, VOCABULARY - 1)) if root is None else root)
    while len(builder) < max_nodes and draw(st.booleans()):
        parent = draw(st.integers(0, len(builder) - 1))
        kind = draw(st.sampled_from(ProposalKind))
        if kind is ProposalKind.POINT:
            tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3, unique=True))
            builder.propose_points(parent, tokens, [draw(st.floats(0.01, 1)) for _ in tokens])
            continue
        unique = kind is ProposalKind.WITHOUT_REPLACEMENT
        ids = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=3, max_size=5, unique=True))
        draws = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=3, unique=unique))
        q = np.full(len(ids), 1 / len(ids), np.float32)
        builder.propose_samples(parent, kind, draws, (np.array(ids, np.int32), q))
    return builder.build()


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """Return the token sequences S_u of all nodes (Definition 3.1)."""
    return {tree.sequence_of(node) for node in range(len(tree))}
