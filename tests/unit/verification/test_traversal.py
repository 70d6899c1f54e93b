"""Traversal verification: hand-computed cases, its gain over multi-step sampling, and known mistakes.

`test_exact.py` enumerates that it is lossless; each mistake here causes a bias in the same comparison.
"""

import numpy as np
import pytest

import specinfer.verification.acceptance.traversal as traversal
from specinfer.model.sampling.noise import Noise
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.tree.token_tree import distribution
from specinfer.verification.acceptance import Acceptance, Float64
from specinfer.verification.acceptance.traversal import verify_traversal
from specinfer.verification.target import LateNodeError
from tests.support.exactness.enumeration import exact, joint, outcomes, random_tables, verified
from tests.support.exactness.pools import BIASED, EXACT, WITH, WITHOUT, Draft, draws, points, step, table, to
from tests.support.trees import CAT, DOG, RAN, SAT, THE
from tests.unit.verification.test_acceptance import Chance, TableTarget, Uniforms


def chain_of_two() -> TokenTree:
    """Return cat, drawn with q = 1, and below it sat, drawn with q = .25."""
    builder = TreeBuilder(THE)
    (cat,) = builder.propose_samples(0, WITH, [CAT], distribution([CAT], [1.0]))
    builder.propose_samples(cat, WITH, [SAT], distribution([SAT, RAN], [0.25, 0.75]))
    return builder.build()


TARGET = TableTarget({0: {CAT: 0.5, DOG: 0.5}, 1: {SAT: 1.0}, 2: {RAN: 1.0}})


def verdict_with(*numbers: float, tree: TokenTree, target: TableTarget = TARGET) -> Acceptance:
    """Return the verdict for these random numbers."""
    rng = Uniforms(*numbers)
    return verify_traversal(tree, target, Chance(lambda depth: rng))


def test_draws_below_a_token_raise_its_acceptance() -> None:
    """cat alone would be accepted with .5. sat below it has min(1, .5 * 1 / .25) = 1, so the path is always
    accepted."""
    assert verdict_with(0.5, tree=chain_of_two()) == Acceptance((1, 2), RAN)


def test_rejected_draws_below_a_token_lower_its_acceptance() -> None:
    """With ran drawn instead, R = (.5 - .25 sat), s = .25, so cat is accepted with .25 / (.25 + .5) = 1/3."""
    builder = TreeBuilder(THE)
    (cat,) = builder.propose_samples(0, WITH, [CAT], distribution([CAT], [1.0]))
    builder.propose_samples(cat, WITH, [RAN], distribution([SAT, RAN], [0.25, 0.75]))
    tree = builder.build()
    assert verdict_with(0.33, 0.5, tree=tree) == Acceptance((1,), SAT)
    assert verdict_with(0.34, 0.5, tree=tree) == Acceptance((), DOG)


def test_a_point_is_accepted_if_it_is_chosen_below_an_accepted_draw() -> None:
    builder = TreeBuilder(THE)
    (cat,) = builder.propose_samples(0, WITH, [CAT], distribution([CAT], [1.0]))
    builder.propose_points(cat, [SAT], [0.9])
    tree = builder.build()
    assert verdict_with(0.49, 0.5, 0.5, tree=tree) == Acceptance((1, 2), RAN)
    assert verdict_with(0.51, 0.5, tree=tree) == Acceptance((), DOG)


class LateTarget(TableTarget):
    """The mask after cat is late."""

    def probabilities(self, node: int) -> Float64:
        if node == 1:
            raise LateNodeError(node)
        return super().probabilities(node)

    def choose(self, node: int, noise: Noise) -> int:
        if node == 1:
            raise LateNodeError(node)
        return super().choose(node, noise)


def test_a_node_whose_mask_is_late_is_accepted_no_more_often_than_alone() -> None:
    """The verdict would end with cat, which has .5 by the target and 1 by the draft."""
    late = LateTarget({0: {CAT: 0.5, DOG: 0.5}})
    with pytest.raises(LateNodeError):
        verdict_with(0.49, tree=chain_of_two(), target=late)
    assert verdict_with(0.51, 0.5, tree=chain_of_two(), target=late) == Acceptance((), DOG)


def test_the_subtree_of_an_excluded_draw_is_not_examined() -> None:
    """A constraint has no mask after a token that it forbids, so its row must not be requested."""
    target = TableTarget({0: {DOG: 1.0}})
    assert verdict_with(0.5, tree=chain_of_two(), target=target) == Acceptance((), DOG)


def committed(rule: str, draft: Draft, tables: list[np.ndarray]) -> float:  # type: ignore[type-arg]
    """Return the expected number of tokens that a step commits."""
    outcomes_of_draft = outcomes(draft)
    return sum(
        w * p * len(t) for tree, w in outcomes_of_draft for t, p in verified(tree, tables, rule).items()
    )


@pytest.mark.parametrize(("kind", "widths"), [(WITH, (1, 1, 1)), (WITH, (2, 1)), (WITHOUT, (2, 1))])
def test_it_accepts_more_than_multi_step(kind: ProposalKind, widths: tuple[int, ...]) -> None:
    """Computed exactly on the same drafts; on chains it is never worse (block verification is optimal there)."""
    gains = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tables, draft_tables = random_tables(rng, 3, 4), random_tables(rng, 3, 4)
        draft = draws([0.5 * t + 0.5 * u for t, u in zip(tables, draft_tables, strict=True)], kind, widths)
        gains.append(committed("traversal", draft, tables) / committed("multi_step", draft, tables))
    assert np.mean(gains) > 1.005
    assert kind is WITHOUT or widths != (1, 1, 1) or min(gains) >= 1 - 1e-12


def error_of(drafts: list[Draft], seeds: range, nodes: int = 6) -> float:
    """Return the largest error of the joint distribution of two tokens over random targets."""
    errors = []
    for seed in seeds:
        tables = random_tables(np.random.default_rng(seed), 3, 4)
        distribution = joint(step([drafts], to(nodes)), [tables], 2, "traversal")
        errors.append(np.abs(distribution - exact([tables], 2)).max())
    return float(max(errors))


def own_tables(seed: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Return random tables for a speculator."""
    return random_tables(np.random.default_rng(100 + seed), 3, 3)


POOLS: dict[str, list[Draft]] = {
    "repeats": [draws(own_tables(1), WITH, (2, 1))],
    "without": [draws(own_tables(2), WITHOUT, (2, 1))],
    "two": [draws(own_tables(3), WITH, (1, 1)), draws(own_tables(4), WITHOUT, (1, 1))],
    "points": [draws(own_tables(5), WITH, (1, 1)), points(own_tables(6), (2, 1))],
}


@pytest.mark.parametrize("name", POOLS)
def test_the_pools_of_the_negative_controls_are_exact(name: str) -> None:
    assert error_of(POOLS[name], range(6)) < EXACT


class OneDistribution(traversal._Draws):
    """Tries every draw below a node with the q of the first one, if that contains its token."""

    def __init__(self, tree: TokenTree) -> None:
        super().__init__(tree)
        self._first: dict[int, traversal._Draw] = {}

    def take(self, node: int) -> "traversal._Draw | None":
        draw = super().take(node)
        if draw is None:
            return None
        first = self._first.setdefault(node, draw)
        known = draw.token in first.ids
        return traversal._Draw(draw.child, draw.token, first.ids, first.q) if known else draw


def test_negative_control_draws_that_share_one_q(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traversal, "_Draws", OneDistribution)
    assert error_of(POOLS["two"], range(6)) > BIASED


def test_negative_control_q_that_keeps_tokens_drawn_without_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traversal, "without", lambda q, ids, token: q)
    assert error_of(POOLS["without"], range(6)) > BIASED


@pytest.mark.parametrize("name", ["without", "two"])
def test_negative_control_p_without_the_condition_of_rejected_draws(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p becomes s, without the condition that earlier draws were rejected."""
    reject = traversal._Visit.reject

    def forgetful(visit: traversal._Visit) -> bool:
        p, total = visit.p, visit._total
        left = reject(visit)
        if p < 1:
            visit.p = p * visit._total / total
        return left

    monkeypatch.setattr(traversal._Visit, "reject", forgetful)
    assert error_of(POOLS[name], range(6)) > BIASED


def test_negative_control_points_that_are_tried_as_if_they_were_drawn() -> None:
    """The first token of a drafter is declared as drawn from its softmax."""
    q = table([0.6, 0.3, 0.1])

    def draft(branches: object) -> TokenTree:
        builder = TreeBuilder(0)
        builder.propose_samples(0, WITHOUT, [0], (np.arange(3, dtype=np.int32), q[0].astype(np.float32)))
        return builder.build()

    assert error_of([draft], range(6)) > BIASED
    assert error_of([points(q, (1,))], range(6)) < EXACT
