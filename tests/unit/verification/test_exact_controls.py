"""Negative controls of the enumeration: each known mistake causes a measurable bias in the same comparison."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import specinfer.model.sampling.drawing
import specinfer.tree.cut
from specinfer.tree import (
    TokenTree,
    TreeBuilder,
)
from tests.support.exactness.enumeration import (
    Branches,
    drawn,
    exact,
    joint,
    outcomes,
    verified,
)
from tests.support.exactness.pools import (
    BIASED,
    DRAWING,
    EXACT,
    ROOT,
    WITH,
    WITHOUT,
    Draft,
    draws,
    step,
    table,
    to,
)

P3 = table([0.6, 0.2, 0.2])
A3 = table([0.4, 0.3, 0.3])
B3 = table([0.5, 0.5, 0.0], [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]])


@pytest.mark.parametrize("rule", DRAWING)
def test_draws_are_tried_in_the_order_in_which_they_are_kept(rule: str) -> None:
    """B's draw is kept first, and its subtree decides whether A's draw still fits, so B's must be tried first."""
    program = step([[draws(A3, WITHOUT, (1,)), draws(B3, WITHOUT, (1, 1))]], to(2))
    first = {tree.proposals[tree.order[0]].speculator for (tree,), _ in outcomes(program)}
    assert first == {1}
    np.testing.assert_allclose(joint(program, [P3], 1, rule), P3[0], atol=EXACT)


@pytest.mark.parametrize("rule", DRAWING)
def test_negative_control_trials_in_pool_order(rule: str) -> None:
    def in_pool_order(trees: Sequence[TokenTree]) -> list[TokenTree]:
        return [replace(tree, order=tuple(sorted(tree.order))) for tree in to(2)(trees)]

    program = step([[draws(A3, WITHOUT, (1,)), draws(B3, WITHOUT, (1, 1))]], in_pool_order)
    np.testing.assert_allclose(joint(program, [P3], 1, rule), [0.8, 0.1, 0.1], atol=1e-6)


P2, Q2 = table([0.8, 0.2]), table([0.9, 0.1])


def next_token_distribution(rule: str, lead: float, seen: bool) -> np.ndarray:  # type: ignore[type-arg]
    """Return the distribution [V] of the next token if a point and a draw compete for one node.

    Args:
        lead: noise of token 0 over that of token 1; the point is the token that the noise favours.
        seen: whether the target chooses by the same noise.
    """
    favourite = int(lead < 0)

    def point(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_points(0, [favourite], [1 / (1 + np.exp(-abs(lead)))])  # softmax of two tokens
        return builder.build()

    def noise(p: "np.ndarray") -> int:  # type: ignore[type-arg]
        with np.errstate(divide="ignore"):
            return int(np.log(p[0]) + lead <= np.log(p[1]))

    probabilities = np.zeros(2)
    for (tree,), weight in outcomes(step([[point, draws(Q2, WITHOUT, (1,))]], to(1))):
        for tokens, p in verified(tree, P2, rule, noise if seen else None).items():
            probabilities[tokens[0]] += weight * p
    return probabilities


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("seen", [True, False])
def test_negative_control_points_that_use_the_noise_together_with_draws(rule: str, seen: bool) -> None:
    """The noise that decides whether a draw is kept also chooses the token after a rejection.

    Of two tokens only the difference of their Gumbel noise matters, a logistic number, whose quantiles are
    integrated. Hiding the noise from all drafters of requests with draws makes the same pool exact.
    """
    quantiles = (np.arange(1000) + 0.5) / 1000
    share = np.mean(
        [next_token_distribution(rule, lead, seen) for lead in np.log(quantiles / (1 - quantiles))], axis=0
    )
    assert np.abs(share - P2[0]).max() > 0.03 if seen else np.abs(share - P2[0]).max() < EXACT


def one_stream(branches: Branches) -> list[TokenTree]:
    """Draw one token each for two requests by one random number; the second has a subtree below token 0."""
    same = branches.choose([0.5, 0.5])
    trees = []
    for subtree in (False, True):
        builder = TreeBuilder(ROOT)
        (node,) = builder.propose_samples(0, WITHOUT, [same], (np.arange(2, dtype=np.int32), HALVES))
        if subtree and same == 0:
            builder.propose_samples(node, WITHOUT, [0], (np.arange(1, dtype=np.int32), HALVES[:1] * 2))
        trees.append(builder.build())
    return trees


HALVES = np.array([0.5, 0.5], np.float32)


@pytest.mark.parametrize("rule", DRAWING)
def test_negative_control_two_requests_that_share_a_draw_stream(rule: str) -> None:
    """One request's subtree displaces the other's draw exactly if that has the same token."""
    cut = to(2, 2, beliefs={0: lambda place, chance: chance}, keeps=lambda kept, _: kept < 2)

    def program(branches: Branches) -> list[TokenTree]:
        first, second = one_stream(branches)
        tree, other = cut([second, first])
        return [other, tree]

    assert np.abs(joint(program, [P2, P2], 1, rule) - exact([P2, P2], 1)).max() > 0.01


@pytest.mark.parametrize("rule", DRAWING)
def test_negative_control_top_k_children_against_softmax(rule: str) -> None:
    """Trap 1: deterministic children are verified as if they were drawn."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_samples(0, WITHOUT, [0], (np.arange(2, dtype=np.int32), P2[0].astype(np.float32)))
        return builder.build()

    np.testing.assert_allclose(joint(step([[draft]], to(1)), [P2], 1, rule), [1, 0], atol=1e-6)


@pytest.mark.parametrize("rule", DRAWING)
def test_negative_control_cutting_by_the_token_drawn(rule: str) -> None:
    def likely(trees: Sequence[TokenTree]) -> list[TokenTree]:
        return [tree if tree.token_ids[1] == 0 else TokenTree.root_only(ROOT) for tree in trees]

    assert np.abs(joint(step([[draws(Q2, WITHOUT, (1,))]], likely), [P2], 1, rule) - P2[0]).max() > 0.05


def grows_by_its_draws(branches: Branches) -> TokenTree:
    """Draw below the first draw; if that is token 0, draw again below it, otherwise at the root."""
    builder = TreeBuilder(ROOT)
    (first,) = drawn(branches, builder, 0, WITH, Q2[0], 1)
    (second,) = drawn(branches, builder, first, WITH, Q2[0], 1)
    if builder.token_ids[second] == 0:
        drawn(branches, builder, second, WITH, Q2[0], 1)
    else:
        drawn(branches, builder, 0, WITH, P2[0], 1)
    return builder.build()


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("listed", [True, False])
def test_a_speculator_is_cut_in_the_order_of_its_list(
    rule: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second draw decides the last one's parent: the cut must not keep the last draw without the second.

    The negative control ranks draws only by their believed values.
    """
    believed = {0: lambda place, chance: 0.5}
    if not listed:
        monkeypatch.setattr(specinfer.tree.cut, "drawing_speculators", lambda tree: set())
    distribution = joint(step([[grows_by_its_draws]], to(2, beliefs=believed)), [P2], 2, rule)
    error = np.abs(distribution - exact([P2], 2)).max()
    assert error < EXACT if listed else error > BIASED


def shares_a_node(first: bool) -> Draft:
    """Return a point whose token a later draw may repeat, or a point that depends on a draw."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        if first:
            builder.propose_points(0, [2], [0.05])
        (node,) = drawn(branches, builder, 0, WITHOUT, P3[0], 1)
        if not first and builder.token_ids[node] == 0:
            builder.propose_points(0, [1], [0.99])
        return builder.build()

    return draft


@pytest.mark.parametrize("rule", DRAWING)
@pytest.mark.parametrize("budget", [1, 2])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_the_score_of_a_point_does_not_depend_on_a_draw(
    rule: str, budget: int, first: bool, swapped: bool
) -> None:
    """The score must not depend on a later draw of the same token, nor on another speculator's point after its draw."""

    def blind(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_points(0, [1], [0.1])
        return builder.build()

    drafts = [shares_a_node(first), blind, draws(A3, WITH, (1,))]
    for price in (0.0, 0.2):
        cut = to(budget, keeps=lambda kept, chance, least=price: chance > least)
        program = step([drafts[::-1] if swapped else drafts], cut)
        np.testing.assert_allclose(joint(program, [P3], 1, rule), P3[0], atol=EXACT)
