"""Losslessness by enumeration (paper, Theorem 4.2): the output's joint distribution is the target's to 1e-9.

The real merge, cut and multi-step rule run over every outcome of the drafts and of the rule's randomness
(`tests.support.exactness.enumeration`): no samples, so no bias is too small to be seen. Pools of one to three
speculators of every kind, drafts of the real growth of SSMs, batches of one and two requests, any beliefs and
any `keeps`.

The negative controls are in `test_exact_controls.py`.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specinfer.tree import (
    ProposalKind,
    TreeLimits,
)
from tests.support.effort import effort
from tests.support.exactness.enumeration import (
    exact,
    joint,
    outcomes,
    random_tables,
    verified,
)
from tests.support.exactness.pools import (
    DRAWING,
    EXACT,
    WITH,
    WITHOUT,
    draws,
    grown,
    options,
    points,
    pools,
    shape_of,
    step,
    to,
)


@pytest.mark.parametrize("rule", DRAWING)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 3))
def test_any_pool_follows_the_target(
    rule: str, data: st.DataObject, seed: int, size: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    targets = [random_tables(rng, size, 4)]
    pool = data.draw(pools(rng, size, {2: 6, 3: 5, 4: 4}[size]))
    distribution = joint(step([pool.drafts], to(pool.budget, **data.draw(options()))), targets, length, rule)
    np.testing.assert_allclose(distribution, exact(targets, length), rtol=0, atol=EXACT)


@pytest.mark.parametrize("rule", DRAWING)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 3))
def test_any_two_requests_of_a_batch_follow_their_targets_independently(
    rule: str, data: st.DataObject, seed: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    targets = [random_tables(rng, size, 4) for _ in range(2)]
    batch = [data.draw(pools(rng, size, 3 if size == 2 else 2)) for _ in range(2)]
    cut = to(*(pool.budget for pool in batch), **data.draw(options()))
    distribution = joint(step([pool.drafts for pool in batch], cut), targets, 2, rule)
    np.testing.assert_allclose(distribution, exact(targets, 2), rtol=0, atol=EXACT)


@pytest.mark.parametrize("rule", ["multi_step", "naive", "traversal"])
@pytest.mark.parametrize("kinds", [(WITH,), (WITHOUT,), (WITH, WITHOUT), (WITHOUT, WITHOUT)])
def test_whole_trees_follow_the_target(rule: str, kinds: tuple[ProposalKind, ...]) -> None:
    """Trees are not cut; they also contain points."""
    for seed in range(3 if len(kinds) > 1 else 20):
        rng = np.random.default_rng(seed)
        targets = [random_tables(rng, 3, 4)]
        drafts = [draws(random_tables(rng, 3, 3), kind, (2,) if len(kinds) > 1 else (2, 1)) for kind in kinds]
        drafts.append(points(random_tables(rng, 3, 3), (1, 1)))
        distribution = joint(step([drafts], lambda trees: list(trees)), targets, 3, rule)
        np.testing.assert_allclose(distribution, exact(targets, 3), rtol=0, atol=EXACT)


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("kind", [WITH, WITHOUT])
@pytest.mark.parametrize("nodes", [2, 3])
def test_grown_trees_follow_the_target(rule: str, kind: ProposalKind, nodes: int) -> None:
    """The drafts drop draws themselves, and are cut again with beliefs that prefer their last draws."""
    for seed in range(effort(2, 5)):
        rng = np.random.default_rng(seed)
        targets = [random_tables(rng, 3, 4)]
        draft = grown(random_tables(rng, 3, 3), shape_of(kind, 4), TreeLimits(nodes, 3))
        cut = to(1 + seed % nodes, beliefs={0: lambda place, _: (0.1, 0.9, 0.9)[min(place, 2)]})
        distribution = joint(step([[draft]], cut), targets, 3, rule)
        np.testing.assert_allclose(distribution, exact(targets, 3), rtol=0, atol=EXACT)


def test_multi_step_accepts_more_than_naive() -> None:
    """Theorem 4.3 by enumeration on the same drafts: more tokens committed per step."""
    rng = np.random.default_rng(3)
    tables = random_tables(rng, 4, 3)
    similar = [0.5 * t + 0.5 * u for t, u in zip(tables, random_tables(rng, 4, 3), strict=True)]
    draft = draws(similar, WITHOUT, (2, 1))

    def committed(rule: str) -> float:
        return sum(
            weight * p * len(tokens)
            for tree, weight in outcomes(draft)
            for tokens, p in verified(tree, tables, rule).items()
        )

    assert committed("multi_step") > 1.02 * committed("naive")
