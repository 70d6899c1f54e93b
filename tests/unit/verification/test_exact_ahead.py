"""Two steps, the second one's tree drafted ahead of the first one's verdict: the output follows the target exactly.

Every outcome of the random choices is enumerated (`tests.support.enumeration`). Draws for contexts of equal length use
the same stream, as they do in the services: one number, by which each context's draft draws from its own q.
Which outcomes are drafted for depends on the tree that was drawn.
"""

from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.drafters.outcomes import PendingTree
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.verification.acceptance import Float64, Randomness, find_rule
from tests.support.enumeration import (
    Branches,
    BranchingRandomness,
    Path,
    Tables,
    TableTarget,
    _completed,
    after,
    exact,
    outcomes,
    random_tables,
)

ROOT, LENGTH, DEPTH = 0, 4, 5
EXACT, BIASED = 1e-9, 1e-3
Stream = Callable[[Float64], int]
"""A draw from q."""


def stream(branches: Branches, tables: Tables, length: int) -> Stream:
    """The random number of all drafts for contexts with so many new tokens: one of the steps of any q's sums.

    Between two neighbouring steps all of them draw the same, whatever the number is.
    """
    edges = np.unique([0.0, *np.cumsum(tables[length], -1).ravel()])
    number = edges[branches.choose(np.diff(edges))]
    return lambda q: int(np.searchsorted(np.cumsum(q), number, side="right"))


def eighths(rng: np.random.Generator, size: int) -> Tables:
    """Random q of eighths, which float32 holds exactly and whose sums have few steps."""
    shapes = [(size,) * depth for depth in range(DEPTH + 1)]
    return [rng.multinomial(8, rng.dirichlet(np.ones(size)), size=shape or None) / 8 for shape in shapes]


def below(root: int, q: Float64, draw: Stream, point: bool) -> TokenTree:
    """A draw behind the context, and a point beside it."""
    builder = TreeBuilder(root)
    ids, sent = np.flatnonzero(q > 0).astype(np.int32), q[q > 0].astype(np.float32)
    kind = ProposalKind.WITHOUT_REPLACEMENT
    (node,) = builder.propose_samples(0, kind, [draw(q)], (ids, sent))
    if point:
        rest = [token for token in np.argsort(-q).tolist() if token != builder.token_ids[node]]
        builder.propose_points(0, rest[:1], [float(q[rest[0]])])
    return builder.build()


def two_steps(
    target: Tables, q: Tables, most: int, point: bool, picky: bool = False
) -> Callable[[Branches], tuple[Path, bool]]:
    """A program that returns the tokens of two steps, and whether the second tree was made ahead.

    One that is `picky` keeps a draft made ahead only if its draw is the token that q favours: that selects by token.
    """
    rule = find_rule("multi_step")

    def verdict(branches: Branches, tree: TokenTree, path: Path) -> Path:
        tables = [cast(Float64, table[path]) for table in target[len(path) :]]
        found = rule(tree, TableTarget(tables, tree), cast(Randomness, BranchingRandomness(branches)))
        return (*(int(tree.token_ids[node]) for node in found.accepted), found.bonus)

    def program(branches: Branches) -> tuple[Path, bool]:
        first = below(ROOT, q[0], stream(branches, q, 0), point)
        pending = PendingTree(first.token_ids.tolist(), first.parents.tolist(), first.scores.tolist(), 99)
        guesses = {}
        for node in pending.ends():
            path = pending.path(node)
            likely = after(q, path)
            builder = TreeBuilder(pending.token_ids[node])
            tokens = np.argsort(-likely)[:2].tolist()
            builder.propose_points(0, tokens, [float(likely[token]) for token in tokens])
            guesses[node] = [builder.build()]
        own = cache(lambda length: stream(branches, q, length))

        def draft(tokens: Path) -> TokenTree:
            return below(tokens[-1], after(q, tokens), own(len(tokens)), point)

        made = {o.tokens: draft(o.tokens) for o in pending.outcomes(guesses)[:most]}
        if picky:
            made = {t: tree for t, tree in made.items() if tree.token_ids[1] == int(after(q, t).argmax())}
        tokens = verdict(branches, first, ())
        tree = made.get(tokens)
        hit = tree is not None
        if tree is None and picky:
            tree = below(tokens[-1], after(q, tokens), stream(branches, q, len(tokens)), point)
        second = tree if tree is not None else draft(tokens)
        return (*tokens, *verdict(branches, second, tokens)), hit

    return program


def distribution(program: Callable[[Branches], tuple[Path, bool]], target: Tables) -> tuple[Float64, float]:
    """[V] * LENGTH: the distribution of the first tokens; and how often a draft was made ahead."""
    found: dict[Path, float] = {}
    hits = 0.0
    for (tokens, hit), weight in outcomes(program):
        found[tokens] = found.get(tokens, 0.0) + weight
        hits += weight * hit
    return _completed(found, target, LENGTH), hits


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 4), point=st.booleans())
def test_two_steps_follow_the_target(seed: int, most: int, point: bool) -> None:
    rng = np.random.default_rng(seed)
    target, q = random_tables(rng, 2, DEPTH), eighths(rng, 2)
    found, _ = distribution(two_steps(target, q, most, point), target)
    assert np.abs(found - exact([target], LENGTH)).max() < EXACT


def test_both_hits_and_misses_are_among_them() -> None:
    rng = np.random.default_rng(1)
    target, q = random_tables(rng, 3, DEPTH), eighths(rng, 3)
    found, hits = distribution(two_steps(target, q, 2, True), target)
    assert np.abs(found - exact([target], LENGTH)).max() < EXACT
    assert 0.2 < hits < 0.95


def test_drafts_that_are_kept_by_their_tokens_are_seen() -> None:
    """The negative control: who throws a draft away for its token, and draws anew, biases the output."""
    rng = np.random.default_rng(1)
    target, q = random_tables(rng, 3, DEPTH), eighths(rng, 3)
    found, _ = distribution(two_steps(target, q, 2, False, picky=True), target)
    assert np.abs(found - exact([target], LENGTH)).max() > BIASED
