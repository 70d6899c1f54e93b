"""Losslessness by enumeration (paper, Theorem 4.2): the output's joint distribution is the target's to 1e-9.

The real merge, cut and multi-step rule run over every outcome of the drafts and of the rule's randomness
(`tests.support.enumeration`): no samples, so no bias is too small to be seen. Pools of one to three speculators of
every kind, drafts of the real growth of SSMs, batches of one and two requests, any beliefs and any `keeps`.
The negative controls are the known mistakes; each shows in the same comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specinfer.model.sampling.drawing
import specinfer.tree.cut
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.sampling import Sampling
from specinfer.tree import (
    ExpansionVector,
    ProposalKind,
    TokenTree,
    TreeBuilder,
    TreeLimits,
    check_tree,
    cut_trees,
    merge_trees,
)
from tests.support.enumeration import (
    Branches,
    Tables,
    after,
    drawn,
    exact,
    joint,
    outcomes,
    random_tables,
    verified,
)

POINT, WITH, WITHOUT = ProposalKind
ROOT = 0
EXACT = 1e-9
BIASED = 1e-3
Draft = Callable[[Branches], TokenTree]
Cut = Callable[[Sequence[TokenTree]], list[TokenTree]]


def path_of(builder: TreeBuilder, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node > 0:
        path.insert(0, builder.token_ids[node])
        node = builder.parents[node]
    return tuple(path)


def draws(tables: Tables, kind: ProposalKind, widths: Sequence[int]) -> Draft:
    """Draws a tree of the given widths, level by level."""

    def draft(branches: Branches) -> TokenTree:
        builder, frontier = TreeBuilder(ROOT), [0]
        for width in widths:
            level = []
            for node in frontier:
                level += drawn(branches, builder, node, kind, after(tables, path_of(builder, node)), width)
            frontier = level
        return builder.build()

    return draft


def points(tables: Tables, widths: Sequence[int]) -> Draft:
    """The most probable tokens, knowing nothing of anybody's randomness."""

    def draft(branches: Branches) -> TokenTree:
        builder, frontier = TreeBuilder(ROOT), [0]
        for width in widths:
            level = []
            for node in frontier:
                q = after(tables, path_of(builder, node))
                top = np.argsort(-q, kind="stable")[:width]
                level += builder.propose_points(node, top.tolist(), q[top].tolist())
            frontier = level
        return builder.build()

    return draft


def mixed(tables: Tables, kind: ProposalKind) -> Draft:
    """Somebody's function: what it does next hangs on what it drew; draws and points in one tree."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        (first,) = drawn(branches, builder, 0, kind, tables[0], 1)
        below = after(tables, path_of(builder, first))
        if builder.token_ids[first] != 1:
            builder.propose_points(0, [1], [0.7])
        if builder.token_ids[first] == 0:
            builder.propose_points(first, [int(below.argmin())], [0.9])
            drawn(branches, builder, 0, WITH, tables[0], 1)
        else:
            drawn(branches, builder, first, kind, below, 1 + builder.token_ids[first] % 2)
        return builder.build()

    return draft


class TableModel:
    """A draft model whose logits are those of tables."""

    def __init__(self, tables: Tables) -> None:
        with np.errstate(divide="ignore"):
            self._logits = [torch.from_numpy(np.log(table)) for table in tables]

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        return [torch.stack([self._logits[len(path)][path] for path in self._paths(s)]) for s in segments]

    def _paths(self, segment: Segment) -> list[tuple[int, ...]]:
        sequence = segment.sequence
        if segment.delta:
            return [()]
        first = len(sequence.node_tokens)
        sequence.node_tokens.extend(segment.nodes)
        sequence.node_parents.extend(segment.parents)
        return [self._path(sequence, node) for node in range(first, len(sequence.node_tokens))]

    @staticmethod
    def _path(sequence: KVSequence, node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node >= 0:
            path.insert(0, sequence.node_tokens[node])
            node = sequence.node_parents[node]
        return tuple(path)


def grown(tables: Tables, shape: GrowthShape, limits: TreeLimits) -> Draft:
    """The real growth of SSM drafters: more is drawn than fits, and q lacks tokens that P has."""
    growth = ReferenceGrowth(TableModel(tables).forward, shape, torch.arange(len(tables[0])))

    def draft(branches: Branches) -> TokenTree:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(specinfer.model.sampling.drawing, "draw", lambda p, _: branches.choose(p))
            (tree,) = growth.grow([GrowthTask(KVSequence(), [ROOT], limits, Sampling())])
        check_tree(tree, len(tables[0]), limits.nodes + 1)
        return tree

    return draft


def merged(drafts: Sequence[Draft], branches: Branches) -> TokenTree:
    return merge_trees([(index, draft(branches)) for index, draft in enumerate(drafts)])


def step(pools: Sequence[Sequence[Draft]], cut: Cut) -> Callable[[Branches], list[TokenTree]]:
    """The cut trees of a batch whose requests have these pools."""
    return lambda branches: cut([merged(drafts, branches) for drafts in pools])


def to(*budgets: int, **options: object) -> Cut:
    """Cuts the trees of a batch to so many nodes each, roots excluded."""
    return lambda trees: cut_trees(trees, [budget + 1 for budget in budgets], **options)  # type: ignore[arg-type]


def table(*rows: object) -> Tables:
    return [np.array(row, float) for row in rows]


# ---------------------------------------------------------------- every pool


@dataclass(frozen=True)
class Pool:
    """One request's speculators."""

    drafts: list[Draft]
    budget: int


@st.composite
def pools(draw: st.DrawFn, rng: np.random.Generator, size: int, most: int) -> Pool:
    """One to three speculators that make about `most` draws together."""
    drafts: list[Draft] = []
    left = most
    for _ in range(draw(st.integers(1, 3))):
        tables = random_tables(rng, size, 3)
        sort = draw(st.sampled_from(["draws", "points", "mixed", "grown", "expanded"]))
        kind = draw(st.sampled_from([WITH, WITHOUT]))
        if sort == "points" or left < 2:
            drafts.append(points(tables, draw(st.sampled_from([(1,), (2,), (1, 1), (2, 1), (1, 1, 1)]))))
            continue
        widths = draw(st.sampled_from([w for w in ((2,), (1, 1), (1, 1, 1), (2, 1)) if _count(w) <= left]))
        left -= _count(widths)
        if sort == "draws":
            drafts.append(draws(tables, kind, widths))
        elif sort == "mixed":
            drafts.append(mixed(tables, kind))
        else:
            expansion = ExpansionVector(widths) if sort == "expanded" else None
            nodes = draw(st.integers(1, min(3, _count(widths))))
            drafts.append(grown(tables, _shape(kind, size, expansion), TreeLimits(nodes, len(widths))))
    return Pool(drafts, draw(st.integers(1, 5)))


def _shape(kind: ProposalKind, size: int, expansion: ExpansionVector | None = None) -> GrowthShape:
    return GrowthShape(expansion, beam=2, kind=kind, q_support=max(2, size - 1))


def _count(widths: Sequence[int]) -> int:
    return ExpansionVector(tuple(widths)).nodes


@st.composite
def options(draw: st.DrawFn) -> dict[str, object]:
    """Beliefs by speculator and place, and a `keeps`."""
    shares = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)
    believed = draw(st.dictionaries(st.integers(0, 2), shares, max_size=3))
    budget, least = draw(st.integers(1, 8)), draw(st.floats(0, 0.1))
    return {
        "beliefs": {s: (lambda place, _, found=found: found[min(place, 2)]) for s, found in believed.items()},
        "keeps": lambda kept, chance: kept < budget and chance > least * kept,
    }


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 3))
def test_any_pool_follows_the_target(data: st.DataObject, seed: int, size: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    targets = [random_tables(rng, size, 4)]
    pool = data.draw(pools(rng, size, {2: 6, 3: 5, 4: 4}[size]))
    found = joint(step([pool.drafts], to(pool.budget, **data.draw(options()))), targets, length)
    np.testing.assert_allclose(found, exact(targets, length), rtol=0, atol=EXACT)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(2, 3))
def test_any_two_requests_of_a_batch_follow_their_targets_independently(
    data: st.DataObject, seed: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    targets = [random_tables(rng, size, 4) for _ in range(2)]
    batch = [data.draw(pools(rng, size, 3 if size == 2 else 2)) for _ in range(2)]
    cut = to(*(pool.budget for pool in batch), **data.draw(options()))
    found = joint(step([pool.drafts for pool in batch], cut), targets, 2)
    np.testing.assert_allclose(found, exact(targets, 2), rtol=0, atol=EXACT)


@pytest.mark.parametrize("rule", ["multi_step", "naive"])
@pytest.mark.parametrize("kinds", [(WITH,), (WITHOUT,), (WITH, WITHOUT), (WITHOUT, WITHOUT)])
def test_whole_trees_follow_the_target(rule: str, kinds: tuple[ProposalKind, ...]) -> None:
    """Uncut, for both rules; points beside them."""
    for seed in range(3 if len(kinds) > 1 else 20):
        rng = np.random.default_rng(seed)
        targets = [random_tables(rng, 3, 4)]
        drafts = [draws(random_tables(rng, 3, 3), kind, (2,) if len(kinds) > 1 else (2, 1)) for kind in kinds]
        drafts.append(points(random_tables(rng, 3, 3), (1, 1)))
        found = joint(step([drafts], lambda trees: list(trees)), targets, 3, rule)
        np.testing.assert_allclose(found, exact(targets, 3), rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", [WITH, WITHOUT])
@pytest.mark.parametrize("nodes", [2, 3])
def test_grown_trees_follow_the_target(kind: ProposalKind, nodes: int) -> None:
    """Drafts that drop draws by themselves, cut again by somebody who believes most in their last draws."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        targets = [random_tables(rng, 3, 4)]
        draft = grown(random_tables(rng, 3, 3), _shape(kind, 4), TreeLimits(nodes, 3))
        cut = to(1 + seed % nodes, beliefs={0: lambda place, _: (0.1, 0.9, 0.9)[min(place, 2)]})
        found = joint(step([[draft]], cut), targets, 3)
        np.testing.assert_allclose(found, exact(targets, 3), rtol=0, atol=EXACT)


def test_multi_step_accepts_more_than_naive() -> None:
    """Theorem 4.3 on the same drafts, exactly: more tokens committed per step."""
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


# ---------------------------------------------------------------- the three examples of the fault, and a
# fourth

P3 = table([0.6, 0.2, 0.2])
A3 = table([0.4, 0.3, 0.3])
B3 = table([0.5, 0.5, 0.0], [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]])


def test_trials_in_keep_order() -> None:
    """B's draw is kept first, and through its subtree decides whether A's still fits: so it is tried
    first."""
    program = step([[draws(A3, WITHOUT, (1,)), draws(B3, WITHOUT, (1, 1))]], to(2))
    first = {tree.proposals[tree.order[0]].speculator for (tree,), _ in outcomes(program)}
    assert first == {1}
    np.testing.assert_allclose(joint(program, [P3], 1), P3[0], atol=EXACT)


def test_negative_control_trials_in_pool_order() -> None:
    def in_pool_order(trees: Sequence[TokenTree]) -> list[TokenTree]:
        return [replace(tree, order=tuple(sorted(tree.order))) for tree in to(2)(trees)]

    program = step([[draws(A3, WITHOUT, (1,)), draws(B3, WITHOUT, (1, 1))]], in_pool_order)
    np.testing.assert_allclose(joint(program, [P3], 1), [0.8, 0.1, 0.1], atol=1e-6)


P2, Q2 = table([0.8, 0.2]), table([0.9, 0.1])


def beside_the_noise(lead: float, seen: bool) -> np.ndarray:  # type: ignore[type-arg]
    """[V] the next token where a point of the noise's favourite and one draw compete for one node.

    Args:
        lead: noise of token 0 over that of token 1.
        seen: whether the target chooses by the noise that the point knows.
    """
    favourite = int(lead < 0)

    def point(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_points(0, [favourite], [1 / (1 + np.exp(-abs(lead)))])  # two rivals' softmax
        return builder.build()

    def noise(p: "np.ndarray") -> int:  # type: ignore[type-arg]
        with np.errstate(divide="ignore"):
            return int(np.log(p[0]) + lead <= np.log(p[1]))

    found = np.zeros(2)
    for (tree,), weight in outcomes(step([[point, draws(Q2, WITHOUT, (1,))]], to(1))):
        for tokens, p in verified(tree, P2, choose=noise if seen else None).items():
            found[tokens[0]] += weight * p
    return found


@pytest.mark.parametrize("seen", [True, False])
def test_negative_control_points_that_look_at_the_noise_beside_draws(seen: bool) -> None:
    """The noise that decides if a draw is kept also chooses where it fails.

    Of two tokens only the difference of their Gumbel noise counts, a logistic number: integrated over its
    quantiles. The cure is that nobody sees the noise of requests for which anybody draws: then the same pool
    is exact.
    """
    quantiles = (np.arange(1000) + 0.5) / 1000
    found = np.mean([beside_the_noise(lead, seen) for lead in np.log(quantiles / (1 - quantiles))], axis=0)
    assert np.abs(found - P2[0]).max() > 0.03 if seen else np.abs(found - P2[0]).max() < EXACT


def one_stream(branches: Branches) -> list[TokenTree]:
    """Two requests draw one token each by the same random number; the second has a subtree below token 0."""
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


def test_negative_control_two_requests_that_share_a_draw_stream() -> None:
    """One request's subtree removes the other's draw just if that has the same token."""
    cut = to(2, 2, beliefs={0: lambda place, chance: chance}, keeps=lambda kept, _: kept < 2)

    def program(branches: Branches) -> list[TokenTree]:
        first, second = one_stream(branches)
        found, other = cut([second, first])
        return [other, found]

    assert np.abs(joint(program, [P2, P2], 1) - exact([P2, P2], 1)).max() > 0.01


def test_negative_control_top_k_children_against_softmax() -> None:
    """Trap 1: deterministic children verified as if they were drawn."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_samples(0, WITHOUT, [0], (np.arange(2, dtype=np.int32), P2[0].astype(np.float32)))
        return builder.build()

    np.testing.assert_allclose(joint(step([[draft]], to(1)), [P2], 1), [1, 0], atol=1e-6)


def test_negative_control_cutting_by_the_token_drawn() -> None:
    def likely(trees: Sequence[TokenTree]) -> list[TokenTree]:
        return [tree if tree.token_ids[1] == 0 else TokenTree.root_only(ROOT) for tree in trees]

    assert np.abs(joint(step([[draws(Q2, WITHOUT, (1,))]], likely), [P2], 1) - P2[0]).max() > 0.05


def grows_by_its_draws(branches: Branches) -> TokenTree:
    """Below its first draw another one; where that is token 0 a third below it, else at the root."""
    builder = TreeBuilder(ROOT)
    (first,) = drawn(branches, builder, 0, WITH, Q2[0], 1)
    (second,) = drawn(branches, builder, first, WITH, Q2[0], 1)
    if builder.token_ids[second] == 0:
        drawn(branches, builder, second, WITH, Q2[0], 1)
    else:
        drawn(branches, builder, 0, WITH, P2[0], 1)
    return builder.build()


@pytest.mark.parametrize("listed", [True, False])
def test_a_speculator_is_cut_in_the_order_of_its_list(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last draw exists where it does because of the second, so it may not be kept before it, whatever is
    believed of them. The negative control ranks them freely."""
    believed = {0: lambda place, chance: 0.5}
    if not listed:
        monkeypatch.setattr(specinfer.tree.cut, "drawing_speculators", lambda tree: set())
    found = joint(step([[grows_by_its_draws]], to(2, beliefs=believed)), [P2], 2)
    error = np.abs(found - exact([P2], 2)).max()
    assert error < EXACT if listed else error > BIASED


def shares_a_node(first: bool) -> Draft:
    """A point whose token the draw behind it may repeat, or a point that follows from what was drawn."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        if first:
            builder.propose_points(0, [2], [0.05])
        (node,) = drawn(branches, builder, 0, WITHOUT, P3[0], 1)
        if not first and builder.token_ids[node] == 0:
            builder.propose_points(0, [1], [0.99])
        return builder.build()

    return draft


@pytest.mark.parametrize("budget", [1, 2])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_the_score_of_a_point_does_not_hang_on_a_draw(budget: int, first: bool, swapped: bool) -> None:
    """Neither on a later draw of the same token, nor on a point of another speculator that follows from its
    draw."""

    def blind(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        builder.propose_points(0, [1], [0.1])
        return builder.build()

    drafts = [shares_a_node(first), blind, draws(A3, WITH, (1,))]
    for price in (0.0, 0.2):
        cut = to(budget, keeps=lambda kept, chance, least=price: chance > least)
        program = step([drafts[::-1] if swapped else drafts], cut)
        np.testing.assert_allclose(joint(program, [P3], 1), P3[0], atol=EXACT)
