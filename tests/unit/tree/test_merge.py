"""Merged trees have the union of all paths (Definition 3.2); cutting must not bias sampled proposals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.errors import MalformedTreeError
from specinfer.tree import (
    Proposal,
    ProposalKind,
    TokenTree,
    TreeBuilder,
    check_tree,
    cut_trees,
    merge_trees,
    truncate,
)
from specinfer.tree.token_tree import distribution
from tests.support.trees import CAT, DOG, RAN, SAT, THE, VOCABULARY, example_tree, paths, trees

ROOTED = st.lists(trees(root=THE), min_size=1, max_size=4)
WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT


def _indexed(trees: list[TokenTree]) -> list[tuple[int, TokenTree]]:
    return list(enumerate(trees))


@given(ROOTED)
def test_a_merged_tree_has_exactly_the_paths_of_its_parts(trees: list[TokenTree]) -> None:
    merged = merge_trees(_indexed(trees))
    check_tree(merged, VOCABULARY, max_nodes=1000)
    assert paths(merged) == set().union(*(paths(tree) for tree in trees))
    assert len(paths(merged)) == len(merged), "a path is in the merge twice"


@given(ROOTED)
def test_every_proposal_survives_with_its_distribution(trees: list[TokenTree]) -> None:
    def seen(tree: TokenTree, speculator: int | None) -> list[tuple[object, ...]]:
        return sorted(
            (
                p.speculator if speculator is None else speculator,
                tree.sequence_of(p.parent),
                p.kind,
                tuple(int(tree.token_ids[c]) for c in p.children),
                tuple(p.q_token_ids.tolist()),
                tuple(p.q_probabilities.tolist()),
            )
            for p in tree.proposals
        )

    expected = sorted(row for i, tree in enumerate(trees) for row in seen(tree, i))
    assert seen(merge_trees(_indexed(trees)), None) == expected


@given(ROOTED)
def test_merging_in_another_order_gives_the_same_paths(trees: list[TokenTree]) -> None:
    assert paths(merge_trees(_indexed(trees))) == paths(merge_trees(_indexed(trees[::-1])))


@given(trees())
def test_merging_one_tree_changes_nothing(tree: TokenTree) -> None:
    for index in (0, 3):
        merged = merge_trees([(index, tree)])
        assert merged.token_ids.tolist() == tree.token_ids.tolist()
        assert merged.parents.tolist() == tree.parents.tolist()
        assert [p.speculator for p in merged.proposals] == [index] * len(tree.proposals), (
            "only the speculator changes"
        )
        assert [p.children for p in merged.proposals] == [p.children for p in tree.proposals]


def test_different_roots_are_refused() -> None:
    with pytest.raises(MalformedTreeError, match="the first tree's root"):
        merge_trees([(0, example_tree()), (1, TokenTree.root_only(DOG))])


def test_a_token_proposed_twice_is_one_node_and_two_candidates() -> None:
    merged = merge_trees([(0, example_tree()), (1, example_tree())])
    assert len(merged) == 5
    assert [(p.speculator, p.parent) for p in merged.proposals] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@given(trees(), st.integers(1, 30))
def test_cut_is_a_valid_part_within_the_budget(tree: TokenTree, budget: int) -> None:
    cut = truncate(tree, budget)
    check_tree(cut, VOCABULARY, max_nodes=budget)
    assert paths(cut) <= paths(tree)
    assert len(cut) <= budget


def test_cut_keeps_the_most_probable_paths() -> None:
    # path probabilities: cat .6, cat sat .3, dog .25, cat ran .24
    assert paths(truncate(example_tree(), 3)) == {(THE,), (THE, CAT), (THE, CAT, SAT)}
    assert paths(truncate(example_tree(), 4)) == {(THE,), (THE, CAT), (THE, CAT, SAT), (THE, DOG)}


@given(trees(), st.integers(1, 30))
def test_cut_keeps_draws_in_order_from_the_first(tree: TokenTree, budget: int) -> None:
    cut = truncate(tree, budget)
    whole = {
        (tree.sequence_of(p.parent), p.kind, tuple(p.q_token_ids.tolist())): [
            [int(tree.token_ids[c]) for c in q.children]
            for q in tree.proposals
            if tree.sequence_of(q.parent) == tree.sequence_of(p.parent) and q.kind == p.kind
        ]
        for p in tree.proposals
    }
    for p in cut.proposals:
        kept = [int(cut.token_ids[c]) for c in p.children]
        options = whole[cut.sequence_of(p.parent), p.kind, tuple(p.q_token_ids.tolist())]
        assert any(draws[: len(kept)] == kept for draws in options)


@pytest.mark.parametrize("kind", [WITH, WITHOUT])
def test_whether_a_draw_is_kept_does_not_depend_on_its_token(kind: ProposalKind) -> None:
    """With room for one node the first draw stays, even if it is improbable, and the second is dropped."""
    q = distribution([CAT, DOG, RAN], [0.98, 0.01, 0.01])
    for first, second in ((CAT, DOG), (DOG, CAT), (RAN, CAT)):
        builder = TreeBuilder(THE)
        builder.propose_samples(0, kind, [first, second], q)
        cut = truncate(builder.build(), 2)
        assert paths(cut) == {(THE,), (THE, first)}
        assert len(cut.proposals[0].children) == 1


def test_draws_of_a_more_peaked_distribution_come_first() -> None:
    """A draw is ranked by its q, not by its token: the draw from the peaked q stays although its token is
    improbable."""
    sure, unsure = TreeBuilder(THE), TreeBuilder(THE)
    sure.propose_samples(0, WITHOUT, [DOG], distribution([CAT, DOG], [0.95, 0.05]))
    unsure.propose_samples(0, WITHOUT, [RAN], distribution([CAT, RAN, SAT], [0.3, 0.4, 0.3]))
    merged = merge_trees([(0, unsure.build()), (1, sure.build())])
    assert paths(truncate(merged, 2)) == {(THE,), (THE, DOG)}
    doubt = {1: lambda place, acceptance: 0.1 * acceptance}
    assert paths(truncate(merged, 2, doubt)) == {(THE,), (THE, RAN)}


def test_scores_of_draws_are_ignored() -> None:
    """Scores may depend on the drawn token; cutting by them would not be lossless."""
    q = distribution([CAT, DOG, SAT], [0.4, 0.3, 0.3])
    builder = TreeBuilder(THE)
    cat, dog = builder.add(0, CAT, score=0.01), builder.add(0, DOG, score=0.99)
    builder.propose(Proposal(0, 0, WITHOUT, (cat, dog), *q))
    assert paths(truncate(builder.build(), 2)) == {(THE,), (THE, CAT)}


def test_a_repeated_draw_is_dropped_with_the_budget_even_though_it_needs_no_node() -> None:
    """Keeping repeated draws while dropping new tokens of a full budget would bias the draws."""
    q = distribution([CAT, DOG], [0.5, 0.5])
    builder = TreeBuilder(THE)
    builder.propose_samples(0, WITH, [CAT, CAT, DOG], q)
    (proposal,) = truncate(builder.build(), 2).proposals
    assert len(proposal.children) == 1


def test_scores_of_a_node_proposed_twice_take_the_higher() -> None:
    a, b = TreeBuilder(THE), TreeBuilder(THE)
    a.propose_points(0, [CAT], [0.2])
    b.propose_points(0, [CAT], [0.7])
    merged = merge_trees([(0, a.build()), (1, b.build())])
    assert np.isclose(merged.scores[1], 0.7)


def test_a_batch_is_cut_by_one_ranking() -> None:
    """Nodes go to the request with the more probable drafts, up to its own limit."""
    sure, unsure = TreeBuilder(THE), TreeBuilder(THE)
    node = 0
    for token in (CAT, SAT, RAN):
        (node,) = sure.propose_points(node, [token], [0.9])
    unsure.propose_points(0, [DOG, CAT], [0.75, 0.1])
    trees = [sure.build(), unsure.build()]
    calls: list[tuple[int, float]] = []

    def pays(kept: int, chance: float) -> bool:
        calls.append((kept, round(chance, 3)))
        return chance > 0.5

    first, second = cut_trees(trees, [9, 9], keeps=pays)
    assert (len(first), len(second)) == (4, 2)
    assert calls == [(0, 0.9), (1, 0.81), (2, 0.75), (3, 0.729), (4, 0.1)]
    first, second = cut_trees(trees, [2, 9])
    assert (len(first), len(second)) == (2, 3)


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 30))
def test_a_batch_cut_keeps_its_budget_and_valid_trees(actual: list[TokenTree], budget: int) -> None:
    cut = cut_trees(actual, [12] * len(actual), keeps=lambda kept, _: kept < budget)
    assert sum(len(tree) - 1 for tree in cut) <= budget
    for part, whole in zip(cut, actual, strict=True):
        check_tree(part, VOCABULARY, max_nodes=12)
        assert paths(part) <= paths(whole)


def test_speculators_that_draw_are_interleaved_but_keep_their_order() -> None:
    """The first draw of a speculator precedes its second one, even if the second is more probable."""
    sure, unsure = TreeBuilder(THE), TreeBuilder(THE)
    sure.propose_samples(0, WITHOUT, [DOG, CAT], distribution([CAT, DOG, SAT], [0.9, 0.05, 0.05]))
    unsure.propose_samples(0, WITHOUT, [RAN], distribution([CAT, RAN, SAT], [0.3, 0.4, 0.3]))
    merged = merge_trees([(0, unsure.build()), (1, sure.build())])
    assert merged.order == (0, 1, 1), "uncut: one speculator after the other"
    beliefs = {0: lambda place, _: 0.5, 1: lambda place, _: (0.3, 0.9)[min(place, 1)]}
    cut = truncate(merged, 9, beliefs)
    order = [(cut.proposals[p].speculator, place) for p, place in cut.candidates()]
    assert order == [(0, 0), (1, 0), (1, 1)]
    assert paths(truncate(merged, 3, beliefs)) == {(THE,), (THE, RAN), (THE, DOG)}
