"""Constraints remove forbidden nodes from trees and add forced ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.tree import (
    NOBODY,
    ProposalKind,
    TokenTree,
    TreeBuilder,
    check_tree,
    merge_trees,
    with_forced,
    without_forbidden,
)
from tests.support.constraints.allowed import TableMatcher
from tests.support.trees import CAT, DOG, RAN, SAT, THE, VOCABULARY, example_tree, paths, trees

EVERYTHING = tuple(range(VOCABULARY))


def after(table: dict[tuple[int, ...], tuple[int, ...]]) -> TableMatcher:
    """Return a matcher that allows these tokens after each path; paths start after the root, others allow every
    token."""
    return TableMatcher(VOCABULARY, lambda path: table.get(path, EVERYTHING))


def tokens_of(seed: int, path: tuple[int, ...]) -> list[int]:
    """Return random tokens that depend only on seed and path."""
    rng = np.random.default_rng([seed, *path])
    return np.flatnonzero(rng.random(VOCABULARY) < 0.7).tolist()


def test_forbidden_nodes_are_removed_with_their_subtrees() -> None:
    kept = without_forbidden(example_tree(), after({(): (DOG,)}))
    assert paths(kept) == {(THE,), (THE, DOG)}
    kept = without_forbidden(example_tree(), after({(CAT,): (RAN,)}))
    assert paths(kept) == {(THE,), (THE, CAT), (THE, CAT, RAN), (THE, DOG)}


def test_nothing_follows_a_complete_text() -> None:
    matcher = after({(CAT,): (), (DOG,): ()})
    kept = without_forbidden(example_tree(), matcher)
    assert paths(kept) == {(THE,), (THE, CAT), (THE, DOG)}
    assert with_forced(kept, matcher, max_nodes=8, depth=8) is kept


@given(trees(), st.integers(0, 1000))
def test_exactly_the_allowed_paths_stay(tree: TokenTree, seed: int) -> None:
    matcher = TableMatcher(VOCABULARY, lambda path: tokens_of(seed, path))
    kept = without_forbidden(tree, matcher)
    check_tree(kept, VOCABULARY, max_nodes=100)
    assert matcher.path == ()
    assert paths(kept) == {
        path
        for path in paths(tree)
        if all(token in tokens_of(seed, path[1:at]) for at, token in enumerate(path) if at)
    }


@given(trees(), st.integers(0, 1000))
def test_draws_keep_q_among_the_allowed_tokens(tree: TokenTree, seed: int) -> None:
    kept = without_forbidden(tree, TableMatcher(VOCABULARY, lambda path: tokens_of(seed, path)))
    for proposal in kept.proposals:
        if proposal.kind is not ProposalKind.POINT:
            path = kept.sequence_of(proposal.parent)[1:]
            assert set(proposal.q_token_ids.tolist()) <= set(tokens_of(seed, path))
            assert proposal.q_probabilities.sum() == pytest.approx(1, abs=1e-6)


@given(st.lists(trees(root=THE), min_size=1, max_size=3), st.integers(0, 1000))
def test_candidates_stay_in_their_order(actual: list[TokenTree], seed: int) -> None:
    merged = merge_trees(list(enumerate(actual)))
    left = without_forbidden(merged, TableMatcher(VOCABULARY, lambda path: tokens_of(seed, path)))

    def listed(tree: TokenTree) -> list[tuple[int, tuple[int, ...]]]:
        rows = [(tree.proposals[i], at) for i, at in tree.candidates()]
        return [(p.speculator, tree.sequence_of(p.children[at])) for p, at in rows]

    assert listed(left) == [row for row in listed(merged) if row[1] in paths(left)]


def test_forced_tokens_are_added_after_the_most_probable_nodes_first() -> None:
    """After "the dog": ran, sat. After "the cat sat": ran."""
    matcher = after({(DOG,): (RAN,), (DOG, RAN): (SAT,), (CAT, SAT): (RAN,)})
    whole = with_forced(example_tree(), matcher, max_nodes=8, depth=8)
    added = {(THE, DOG, RAN), (THE, DOG, RAN, SAT), (THE, CAT, SAT, RAN)}
    assert paths(whole) == paths(example_tree()) | added
    check_tree(whole, VOCABULARY, max_nodes=100)
    assert {whole.sequence_of(node) for node in whole.forced} == added
    assert paths(with_forced(example_tree(), matcher, max_nodes=1, depth=8)) == paths(example_tree()) | {
        (THE, CAT, SAT, RAN)  # 0.6 * 0.5, dog has 0.25
    }
    assert (THE, DOG, RAN, SAT) not in paths(with_forced(example_tree(), matcher, max_nodes=8, depth=2))


def test_forced_tokens_that_were_drafted_are_not_added() -> None:
    matcher = after({(): (CAT,), (CAT,): (SAT,)})
    left = without_forbidden(example_tree(), matcher)
    assert with_forced(left, matcher, max_nodes=8, depth=8) is left


def test_a_chain_stays_a_chain() -> None:
    builder = TreeBuilder(THE)
    (cat,) = builder.propose_points(0, [CAT], [0.5])
    builder.propose_points(cat, [SAT], [0.5])
    matcher = after({(CAT,): (SAT, RAN), (CAT, SAT): (RAN,), (CAT, SAT, RAN): (DOG,)})
    matcher.forced = lambda: [RAN, DOG] if matcher.path in ((CAT,), (CAT, SAT)) else []  # type: ignore[method-assign]
    tree = with_forced(builder.build(), matcher, max_nodes=8, depth=8, chain=True)
    assert paths(tree) == {(THE, CAT, SAT, RAN, DOG)[:length] for length in range(1, 6)}
    assert len(paths(with_forced(builder.build(), matcher, max_nodes=8, depth=8))) == 7


@given(st.lists(trees(root=THE), min_size=1, max_size=3), st.integers(0, 1000), st.integers(0, 6))
def test_forced_tokens_join_any_tree(actual: list[TokenTree], seed: int, max_nodes: int) -> None:
    def one_or_all(path: tuple[int, ...]) -> list[int]:
        return tokens_of(seed, path)[: 1 + 20 * (len(path) % 2)]

    merged = merge_trees(list(enumerate(actual)))
    matcher = TableMatcher(VOCABULARY, one_or_all)
    left = without_forbidden(merged, matcher)
    whole = with_forced(left, matcher, max_nodes, depth=6)
    check_tree(whole, VOCABULARY, max_nodes=200)
    assert matcher.path == ()
    assert paths(left) <= paths(whole)
    assert len(whole) - len(left) == len(whole.forced) <= max_nodes
    proposals = [p for p in whole.proposals if p.speculator != NOBODY]
    assert [(p.speculator, p.kind, p.q_token_ids.tolist()) for p in proposals] == [
        (p.speculator, p.kind, p.q_token_ids.tolist()) for p in left.proposals
    ]
