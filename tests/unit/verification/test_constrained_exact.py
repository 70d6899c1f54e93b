"""Losslessness under a constraint by enumeration: outputs follow the masked target exactly.

Forbidden drafts are dropped and forced tokens added, then trees are cut and verified against the masked target.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specinfer.tree import ProposalKind, TokenTree, cut_trees, with_forced, without_forbidden
from tests.support.constraints.allowed import TableMatcher
from tests.support.exactness.enumeration import Branches, Tables, exact, joint, random_tables
from tests.support.exactness.pools import DRAWING, Pool, draws, merged, options, points, pools

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
ROUNDED = 1e-6
"""Maximum error: the renormalised q is in float32, as it is sent."""
Prune = Callable[[TokenTree, TableMatcher], TokenTree]


def random_constraint(rng: np.random.Generator, tables: Tables) -> tuple[TableMatcher, Tables]:
    """Return a matcher that allows at least one possible token after every path, and the masked tables."""
    masks = [rng.random(table.shape) < 0.6 for table in tables]
    for mask, table in zip(masks, tables, strict=True):
        np.put_along_axis(mask, table.argmax(-1, keepdims=True), True, -1)
    masked = [np.where(mask, table, 0) for mask, table in zip(masks, tables, strict=True)]

    def allowed(path: tuple[int, ...]) -> list[int]:
        row = masks[len(path)][path] if len(path) < len(masks) else masks[0]
        return np.flatnonzero(row).tolist()

    return TableMatcher(len(tables[0]), allowed), [table / table.sum(-1, keepdims=True) for table in masked]


def step(
    pool: Pool, matcher: TableMatcher, prune: Prune, **cut: object
) -> Callable[[Branches], Sequence[TokenTree]]:
    """Return a program that makes trees from a pool's drafts like the gateway."""

    def program(branches: Branches) -> Sequence[TokenTree]:
        tree = prune(merged(pool.drafts, branches), matcher)
        (tree,) = cut_trees([tree], [pool.budget + 1], **cut)  # type: ignore[arg-type]
        return [with_forced(tree, matcher, max_nodes=2, depth=3)]

    return program


@pytest.mark.parametrize("rule", DRAWING)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 3))
def test_any_pool_follows_the_masked_target(
    rule: str, data: st.DataObject, seed: int, size: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    matcher, target = random_constraint(rng, random_tables(rng, size, 4))
    pool = data.draw(pools(rng, size, {2: 6, 3: 5, 4: 4}[size]))
    distribution = joint(
        step(pool, matcher, without_forbidden, **data.draw(options())), [target], length, rule
    )
    np.testing.assert_allclose(distribution, exact([target], length), rtol=0, atol=ROUNDED)


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("kind", [WITH, WITHOUT])
def test_negative_control_forbidden_draws_dropped_while_q_stays(rule: str, kind: ProposalKind) -> None:
    """A draw that is dropped without renormalising q causes a bias."""

    def careless(tree: TokenTree, matcher: TableMatcher) -> TokenTree:
        pruned = without_forbidden(tree, matcher)
        whole = {p.speculator: p for p in tree.proposals}  # one each
        kept = [
            p._replace(q_token_ids=old.q_token_ids, q_probabilities=old.q_probabilities)
            for p in pruned.proposals
            for old in [whole[p.speculator]]
        ]
        return TokenTree(pruned.token_ids, pruned.parents, tuple(kept), pruned.scores, pruned.order)

    q = [np.array([0.5, 0.3, 0.2])]
    matcher = TableMatcher(3, lambda path: [0, 1] if not path else [0, 1, 2])
    target: Tables = [np.array([0.3, 0.7, 0.0])]
    pool = Pool([draws(q, kind, (2,)), points(q, (1,))], 4)
    right = joint(step(pool, matcher, without_forbidden), [target], 1, rule)
    np.testing.assert_allclose(right, target[0], rtol=0, atol=ROUNDED)
    assert np.abs(joint(step(pool, matcher, careless), [target], 1, rule) - target[0]).max() > 1e-3


@pytest.mark.parametrize("rule", DRAWING)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 3))
def test_late_masks_do_not_favour_drafts(
    rule: str, data: st.DataObject, seed: int, size: int, length: int
) -> None:
    """Any masks may be late: always, or only when the rule first asks for them."""
    rng = np.random.default_rng(seed)
    matcher, target = random_constraint(rng, random_tables(rng, size, 4))
    lateness: dict[tuple[int, ...], int] = {}

    def late(path: tuple[int, ...]) -> int:
        return lateness.setdefault(path, int(rng.choice([0, 1, 1000])))

    pool = data.draw(pools(rng, size, {2: 6, 3: 5, 4: 4}[size]))
    trees = step(pool, matcher, without_forbidden, **data.draw(options()))
    distribution = joint(trees, [target], length, rule, late)
    np.testing.assert_allclose(distribution, exact([target], length), rtol=0, atol=ROUNDED)
