"""Estimates of accepted tokens, for trees and for subsets of speculators, from known outcomes."""

import pytest

from specinfer.planning.accepted_tokens import AcceptedTokens
from specinfer.planning.choice import Choice
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import Outcomes, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.planning.tree_parts import Shares, nodes_needed, ranked_nodes
from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TokenTree, TreeBuilder, merge_trees
from tests.support.oracle import chain

ROOT = 7
FIRST, SECOND, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def outcome(tree: TokenTree, wrong: int = 9) -> tuple[TokenTree, list[int]]:
    return tree, [node for node in range(1, len(tree)) if tree.token_ids[node] != wrong]


def merged(*drafts: list[int]) -> TokenTree:
    return merge_trees([(s, chain(ROOT, tokens)) for s, tokens in enumerate(drafts)])


def shares_of(speculators: int, *outcomes: tuple[TokenTree, list[int]]) -> Shares:
    """Return shares learnt from sixteen trees of each outcome."""
    shares = Shares(frozenset(range(speculators)))
    for _ in range(16):
        for tree, accepted in outcomes:
            shares.add(tree, accepted)
    return shares


def test_the_share_of_a_subset_counts_tokens_up_to_the_first_missing_one() -> None:
    """Speculator 0 proposed the first two of four accepted tokens, 1 all of them; with 0 alone only two are
    accepted."""
    shares = shares_of(2, outcome(merged([1, 2, 9], [1, 2, 3, 4])))
    assert shares.share(FIRST) == 0.5
    assert shares.share(SECOND) == shares.share(BOTH) == 1.0
    tree = merge_trees([(0, chain(ROOT, [1])), (1, chain(ROOT, [5, 6]))])
    shares = shares_of(2, (tree, [1]))
    assert (shares.share(FIRST), shares.share(SECOND), shares.share(frozenset())) == (1.0, 0.0, 0.0)


def test_subsets_of_the_pool_are_considered_after_some_trees() -> None:
    """For n speculators, 2n - 1 of the 2^n subsets are considered."""
    shares = Shares(frozenset(range(18)))
    assert shares.sets == [shares.everybody]
    shares = shares_of(18, (chain(ROOT, [1]), [1]))
    assert len(shares.sets) == 18 + 17
    assert shares.sets[-1] == frozenset(range(18))
    assert {len(asked) for asked in shares.sets} == set(range(1, 19))


def test_subsets_grow_by_the_speculator_that_adds_most_tokens() -> None:
    """Speculator 2 is the best; 0 repeats its proposals, and 1 is right for other texts, so 1 is added second."""
    usual, other = merged([1, 2, 9], [9], [1, 2, 3]), merged([9], [1, 2, 3], [9])
    shares = shares_of(3, *[outcome(usual)] * 3, outcome(other))
    assert frozenset({1, 2}) in shares.sets
    assert frozenset({0, 2}) not in shares.sets


def test_nodes_are_ranked_by_path_probability() -> None:
    """Speculator 0 proposes 1-2-3; speculator 1 proposes 9 and, with less probability, 1."""
    surer = TreeBuilder(ROOT)
    surer.propose_points(0, [9, 1], [0.9, 0.4])
    tree = merge_trees([(0, chain(ROOT, [1, 2, 3], 0.5)), (1, surer.build())])
    path = [node for node in range(len(tree)) if tree.token_ids[node] in (1, 2, 3)]
    assert nodes_needed(tree, path, FIRST) == [1, 2, 3]
    assert nodes_needed(tree, path, SECOND) == [2], "9 comes first"
    assert nodes_needed(tree, path, BOTH) == ranked_nodes(tree, path) == [2, 3, 4]
    assert nodes_needed(tree, [], FIRST) == ranked_nodes(tree, []) == []


def gains_of(accepted: AcceptedTokens, batch_class: int = 0, num_sizes: int = 4) -> list[float]:
    return [gain.tokens for gain in accepted.gains(FIRST, batch_class, num_sizes)]


def test_a_tree_counts_for_every_smaller_size() -> None:
    """The two most probable of eight nodes are accepted; gains of sizes that were never tried are extrapolated."""
    accepted = AcceptedTokens()
    for step in range(200):
        accepted.add(FIRST, 0, 4, [([1, 2], 1.0)], step)
    assert gains_of(accepted) == pytest.approx([1, 1, 0, 0], abs=0.1)
    assert 0.1 < gains_of(accepted, num_sizes=5)[-1] < 0.7


def test_old_trees_lose_weight() -> None:
    accepted = AcceptedTokens()
    for step in range(800):
        accepted.add(FIRST, 0, 1, [([1] if step >= 400 else [], 1.0)], step)
    assert gains_of(accepted, num_sizes=1) == pytest.approx([1.0], abs=0.2)


def test_a_new_batch_size_starts_with_the_statistics_of_others() -> None:
    accepted = AcceptedTokens()
    for step in range(300):
        accepted.add(FIRST, 0, 3, [([], 1.0)], step)
    assert sum(gains_of(accepted, batch_class=4)) < 0.2


def planner_of(outcomes: Outcomes, steps: int, chains: bool = False) -> TablePlanner:
    """Return a planner that has learnt from trees of both speculators."""
    planner = TablePlanner(PassCurve([(1, 0.005), (64, 0.05)]), NodeBudget(8, 8))
    planner.enrol([BOTH])
    planner.follow(dict.fromkeys(outcomes, 0))
    choice = Choice(BOTH, 7, 7)
    for _ in range(steps):
        outcomes_of: tuple[Outcomes, Outcomes] = ({}, outcomes) if chains else (outcomes, {})
        planner.learn_tokens(StepReport(choice, 1, 8, 0.0, [], 0.0, *outcomes_of))
    return planner


def expected(planner: TablePlanner, *names: str) -> float:
    """Return the expected accepted tokens of seven nodes for each of these requests."""
    planner.follow(dict.fromkeys(names, 0))
    return list(planner.expected(BOTH, 0, planner.gains(BOTH, 0, 3)))[-1][0]


def test_a_request_is_judged_by_its_own_trees_and_the_average_ones() -> None:
    planner = planner_of({"good": (chain(ROOT, range(7)), range(1, 7))}, 30)
    good, both = expected(planner, "good"), expected(planner, "good", "new")
    assert good == pytest.approx(4.0, abs=1.0)
    assert 0.3 * good < both - good < 0.5 * good
    hopeless = planner_of({"bad": (chain(ROOT, range(7)), [])}, 20)
    assert expected(hopeless, "bad") < expected(hopeless, "new"), (
        "a new request may be better than the last one"
    )


def test_chains_change_estimates_of_requests_but_not_of_subsets() -> None:
    outcomes = {"r": (chain(ROOT, range(3)), [1, 2, 3])}
    before = expected(planner_of(outcomes, 0, chains=True), "r")
    planner = planner_of(outcomes, 40, chains=True)
    assert planner._shares.share(SECOND) == 1.0, "not measured"
    assert expected(planner, "r") > before


def test_trees_without_any_kept_node_lower_the_estimate_of_a_request() -> None:
    root = {"r": (TokenTree.root_only(ROOT), [])}
    assert expected(planner_of(root, 40), "r") < 0.3 * expected(planner_of(root, 0), "r")
