"""Acceptance rules on hand-computed cases."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.errors import SettingError
from specinfer.model.sampling.distributions import draw
from specinfer.model.sampling.noise import Noise
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder, merge_trees
from specinfer.tree.token_tree import distribution
from specinfer.verification.acceptance import Acceptance, AcceptanceRule, Float64, find_rule
from specinfer.verification.acceptance.greedy import verify_greedy
from specinfer.verification.acceptance.multi_step import verify_multi_step
from specinfer.verification.acceptance.naive import verify_naive
from specinfer.verification.acceptance.traversal import verify_traversal
from tests.support.trees import CAT, DOG, RAN, SAT, THE, VOCABULARY, example_tree, trees

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT


class TableTarget:
    """A target with given probabilities after each node."""

    def __init__(self, rows: dict[int, dict[int, float]]) -> None:
        self._rows = rows

    def best(self, node: int) -> int:
        return max(self._rows[node], key=self._rows[node].__getitem__)

    def probabilities(self, node: int) -> Float64:
        p = np.zeros(VOCABULARY)
        for token, value in self._rows[node].items():
            p[token] = value
        return p

    def choose(self, node: int, noise: Noise) -> int:
        return noise.choose(self.probabilities(node))


class Uniforms(np.random.Generator):
    """A generator that returns the given numbers."""

    def __init__(self, *values: float) -> None:
        super().__init__(np.random.PCG64(0))
        self._values = list(values)

    def random(self, *args: object, **kwargs: object) -> float:  # type: ignore[override]
        return self._values.pop(0)


def certain(*tokens: int) -> TableTarget:
    """Return a target in which nodes 0, 1, 2, ... are followed by these tokens with certainty."""
    return TableTarget({node: {token: 1.0} for node, token in enumerate(tokens)})


@dataclass(frozen=True)
class _Inversion(Noise):
    """Chooses by inversion with a generator's numbers."""

    rng: np.random.Generator

    def choose(self, p: Float64) -> int:
        return draw(p, self.rng)


class Chance:
    """Tries draws and chooses tokens with one generator per depth."""

    def __init__(self, at: Callable[[int], np.random.Generator]) -> None:
        self._at, self._streams = at, {}  # type: ignore[var-annotated]

    def stream(self, depth: int) -> np.random.Generator:
        return self._streams.setdefault(depth, self._at(depth))  # type: ignore[no-any-return]

    def noise(self, depth: int) -> Noise:
        return _Inversion(0, depth, self.stream(depth))


def _never(depth: int) -> np.random.Generator:
    raise AssertionError("greedy verification draws nothing")


unused = Chance(_never)


def test_greedy_follows_the_target_through_the_tree() -> None:
    # node 0 -> cat (node 1) -> ran (node 3) -> dog, which is no child
    target = TableTarget({0: {CAT: 1}, 1: {RAN: 1}, 3: {DOG: 1}})
    assert verify_greedy(example_tree(), target, unused) == Acceptance((1, 3), DOG)


def test_greedy_rejects_at_once_or_accepts_everything() -> None:
    assert verify_greedy(example_tree(), certain(RAN), unused) == Acceptance((), RAN)
    assert verify_greedy(TokenTree.root_only(THE), certain(CAT), unused) == Acceptance((), CAT)


@given(trees(), st.integers(0, 2**32 - 1))
def test_greedy_never_disagrees_with_the_target(tree: TokenTree, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = {n: {int(t): 1.0} for n, t in enumerate(rng.integers(0, VOCABULARY, len(tree)))}
    target = TableTarget(table)
    verdict = verify_greedy(tree, target, unused)
    nodes = [0, *verdict.accepted]
    tokens = [*(int(tree.token_ids[v]) for v in verdict.accepted), verdict.bonus]
    assert tokens == [target.best(node) for node in nodes]
    assert not any(
        tree.parents[v] == nodes[-1] and tree.token_ids[v] == verdict.bonus for v in range(1, len(tree))
    )


def test_naive_accepts_a_child_exactly_if_the_target_draws_it() -> None:
    target = TableTarget({0: {CAT: 0.5, DOG: 0.5}, 1: {SAT: 0.5, THE: 0.5}})
    draws = [Uniforms(0.2), Uniforms(0.1)]  # cat is [0, .5); then THE is [0, .5) as ids are in order
    assert verify_naive(example_tree(), target, Chance(lambda depth: draws[depth])) == Acceptance((1,), THE)


def test_trap_1_a_deterministic_child_is_accepted_with_its_target_probability() -> None:
    """P = (0.6, 0.4) and one top-1 child: accepted for r <= 0.6, and only then."""
    builder = TreeBuilder(THE)
    builder.propose_points(0, [CAT], [0.6])
    target = TableTarget({0: {CAT: 0.6, DOG: 0.4}, 1: {DOG: 1.0}})
    tree = builder.build()
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.59, 0.5))).accepted == (1,)
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.61, 0.5))) == Acceptance((), DOG)


def test_rejection_subtracts_q_and_tries_the_next_draw() -> None:
    """P = (.2 cat, .8 dog), q = (.8, .2): cat passes for r <= 1/4; then the residual is dog alone."""
    builder = TreeBuilder(THE)
    builder.propose_samples(0, WITH, [CAT, DOG], distribution([CAT, DOG], [0.8, 0.2]))
    target = TableTarget({0: {CAT: 0.2, DOG: 0.8}, 1: {SAT: 1.0}, 2: {RAN: 1.0}})
    tree = builder.build()
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.24, 0.5))).accepted == (1,)
    # residual (0, .6)/.6 = dog with certainty, q = .2: accepted for any r
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.26, 0.999, 0.5))).accepted == (2,)


def test_without_replacement_renormalises_q_after_a_rejection() -> None:
    """q = (.5 cat, .25 dog, .25 sat); after cat is rejected dog is tried with q = .5, not .25.

    P = (.1 cat, .3 dog, .6 sat). Residual after cat: (0, .05, .35)/.4 = (0, .125, .875);
    dog passes for r <= .125/.5 = .25.
    """
    builder = TreeBuilder(THE)
    builder.propose_samples(0, WITHOUT, [CAT, DOG], distribution([CAT, DOG, SAT], [0.5, 0.25, 0.25]))
    target = TableTarget({0: {CAT: 0.1, DOG: 0.3, SAT: 0.6}, 2: {RAN: 1.0}})
    tree = builder.build()
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.9, 0.24, 0.5))).accepted == (2,)
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.9, 0.26, 0.5))) == Acceptance((), SAT)


CASES = [(0.19, 0.5), (0.21, 0.63, 0.5), (0.21, 0.62, 0.5)]
"""Random numbers of the trial, the choice (sat has .5 of .8 and comes first), and the bonus token."""


def test_points_are_accepted_if_they_are_chosen_after_rejected_draws() -> None:
    """P = (.2 cat, .5 sat, .3 dog); cat is drawn with q = 1 and rejected; of the rest only dog is a child."""
    points, draws = TreeBuilder(THE), TreeBuilder(THE)
    points.propose_points(0, [DOG], [0.9])
    draws.propose_samples(0, WITHOUT, [CAT], distribution([CAT], [1.0]))
    tree = merge_trees([(0, points.build()), (1, draws.build())])
    target = TableTarget({0: {CAT: 0.2, DOG: 0.3, SAT: 0.5}, 1: {RAN: 1.0}, 2: {RAN: 1.0}})
    dog, cat = tree.token_ids.tolist().index(DOG), tree.token_ids.tolist().index(CAT)
    verdicts = {u: verify_multi_step(tree, target, Chance(lambda d, u=u: Uniforms(*u))) for u in CASES}  # type: ignore[misc]
    assert [verdicts[u].accepted for u in CASES] == [(cat,), (dog,), ()]
    assert [verdicts[u].bonus for u in CASES] == [RAN, RAN, SAT]


def test_each_candidate_of_a_merged_tree_is_tried_with_its_own_q() -> None:
    """A draws cat with q = 1 (accepted for r <= .3), B draws dog with q = .5 from the residual of A."""
    a, b = TreeBuilder(THE), TreeBuilder(THE)
    a.propose_samples(0, WITH, [CAT], distribution([CAT], [1.0]))
    b.propose_samples(0, WITH, [DOG], distribution([DOG, SAT], [0.5, 0.5]))
    tree = merge_trees([(0, a.build()), (1, b.build())])
    target = TableTarget({0: {CAT: 0.3, DOG: 0.35, SAT: 0.35}, 1: {RAN: 1.0}, 2: {RAN: 1.0}})
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.29, 0.5))).accepted == (1,)
    # residual (0, .5, .5); dog has q = .5: accepted for any r
    assert verify_multi_step(tree, target, Chance(lambda d: Uniforms(0.31, 0.99, 0.5))).accepted == (2,)


@pytest.mark.parametrize("rule", [verify_multi_step, verify_traversal])
def test_equal_distributions_are_always_accepted_despite_rounding(rule: AcceptanceRule) -> None:
    q = distribution([CAT, DOG, SAT], [0.1, 0.2, 0.7])
    builder = TreeBuilder(THE)
    builder.propose_samples(0, WITHOUT, [DOG], q)
    p = dict(zip(q[0].tolist(), (q[1].astype(float) * (1 - 1e-12)).tolist(), strict=True))
    target = TableTarget({0: p, 1: {RAN: 1.0}})
    rng = Uniforms(1 - 1e-16, 0.5)
    assert rule(builder.build(), target, Chance(lambda depth: rng)).accepted == (1,)


@pytest.mark.parametrize("verify", [verify_multi_step, verify_traversal])
@given(tree=trees(), seed=st.integers(0, 2**32 - 1))
def test_a_verdict_is_a_path_and_a_possible_token(verify: AcceptanceRule, tree: TokenTree, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(VOCABULARY, 0.3), len(tree))
    target = TableTarget({n: {t: float(x) for t, x in enumerate(row)} for n, row in enumerate(rows)})
    verdict = verify(tree, target, Chance(lambda depth: rng))
    assert list(verdict.accepted) == (tree.path_to(verdict.accepted[-1]) if verdict.accepted else [])
    assert rows[verdict.accepted[-1] if verdict.accepted else 0][verdict.bonus] > 0


def test_without_a_tree_stochastic_rules_draw_the_token_of_plain_decoding() -> None:
    target = TableTarget({0: {CAT: 0.2, DOG: 0.5, SAT: 0.3}})
    for u in np.linspace(0, 0.999, 20):
        verdicts = {
            rule(TokenTree.root_only(THE), target, Chance(lambda d, u=u: Uniforms(u)))  # type: ignore[misc]
            for rule in (verify_multi_step, verify_naive, verify_traversal)
        }
        assert len(verdicts) == 1


def test_rules_are_found_by_name() -> None:
    assert find_rule("multi_step") is verify_multi_step
    with pytest.raises(SettingError, match="acceptance = 'typical':"):
        find_rule("typical")
