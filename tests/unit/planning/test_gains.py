"""Counted gains: of smaller trees, of parts of the speculators, and of each request."""

import random
from dataclasses import replace

import pytest

from specinfer.planning.choice import Choice
from specinfer.planning.costs import SIZES
from specinfer.planning.gains import TreeGains, nodes_needed, ranked_nodes
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.tree import TokenTree, TreeBuilder, merge_trees
from tests.support.oracle import chain

ROOT = 7
ALONE, BOTH = frozenset({0}), frozenset({0, 1})


def report(name: str, tree: TokenTree, accepted: list[int], nodes: int = 4) -> StepReport:
    """Return a step of one request, whose tree all speculators drafted."""
    return StepReport(Choice(BOTH, nodes, nodes), 1, len(tree), 1.0, [], 0.0, {name: (tree, accepted)})


def gains_of(*requests: str) -> TreeGains:
    gains = TreeGains()
    gains.enrol(BOTH)
    gains.follow(dict.fromkeys(requests, 10))
    return gains


def tokens(gains: TreeGains, speculators: frozenset[int] = BOTH, sizes: int = 4) -> list[float]:
    return list(gains.expected(speculators, 0, sizes)[0])


def test_a_tree_counts_for_every_smaller_size() -> None:
    """The first two of four nodes are accepted: two nodes bring as much as four, one node brings one token."""
    gains = gains_of("a")
    gains.observe([report("a", chain(ROOT, range(4)), [1, 2])] * 300)
    gains.follow({"b": 5})
    assert tokens(gains) == pytest.approx([1.0, 2.0, 2.0, 2.0], abs=0.1)


def test_a_part_of_the_speculators_brings_what_it_proposed() -> None:
    gains = gains_of("a")
    tree = merge_trees([(0, chain(ROOT, [1, 2, 3])), (1, chain(ROOT, [1, 5]))])
    path = [next(node for node in range(1, len(tree)) if tree.token_ids[node] == token) for token in (1, 2)]
    gains.observe([report("a", tree, path)] * 300)
    gains.follow({"b": 5})
    assert tokens(gains, ALONE)[-1] == pytest.approx(2.0, abs=0.1)
    assert tokens(gains, frozenset({1}))[-1] == pytest.approx(1.0, abs=0.1)


def test_a_step_in_which_copies_draft_alone_does_not_count_for_the_model() -> None:
    """Half of the steps show the model, which is right twice; in the others it was not asked."""
    gains, path = gains_of("a"), [1, 2]
    asked = report("a", merge_trees([(1, chain(ROOT, [1, 2]))]), path)
    times = [DraftTime(BOTH, {0: 0.001}, 0.0)]
    alone = replace(report("a", merge_trees([(0, chain(ROOT, [1, 2, 3]))]), [1, 2, 3]), drafts=times)
    gains.observe([asked, alone] * 300)
    gains.follow({"b": 5})
    assert tokens(gains, frozenset({1}))[-1] == pytest.approx(2.0, abs=0.1)
    assert tokens(gains)[-1] == pytest.approx(2.5, abs=0.1)


def test_each_request_gets_its_own_expectation_within_ten_steps() -> None:
    """Half of the requests are predictable, half are not: the average says nothing about one of them."""
    gains, tree = gains_of("good", "bad"), chain(ROOT, range(4))
    for _ in range(100):
        gains.observe([report("good", tree, [1, 2, 3, 4]), report("bad", tree, [])])
    for name, accepted, low, high in (("c", [1, 2, 3, 4], 3.0, 4.2), ("d", [], 0.0, 1.0)):
        gains.follow({name: 5})
        assert tokens(gains)[-1] == pytest.approx(2.0, abs=0.2)
        gains.observe([report(name, tree, accepted)] * 10)
        assert low < tokens(gains)[-1] < high


def test_constraints_bring_no_credit_to_drafts() -> None:
    """Tokens that a constraint forces are no gain of the speculators."""
    gains = gains_of("a")
    builder = TreeBuilder(ROOT)
    forced = builder.propose_points(0, [1], [1.0], speculator=2**32 - 1)
    gains.observe([report("a", builder.build(), list(forced))] * 300)
    gains.follow({"b": 5})
    assert tokens(gains)[0] < 0.05


def test_a_speculator_that_joins_is_expected_to_take_nothing_away() -> None:
    gains = TreeGains()
    gains.enrol(ALONE)
    gains.follow({"a": 10})
    drafted = StepReport(
        Choice(ALONE, 4, 4), 1, 5, 1.0, [], 0.0, {"a": (chain(ROOT, range(4)), [1, 2, 3, 4])}
    )
    gains.observe([drafted] * 300)
    gains.enrol(BOTH)
    gains.follow({"b": 10})
    _, certain, _ = gains.expected(ALONE, 0, 4)
    expected, doubtful, _ = gains.expected(BOTH, 0, 4)
    assert expected[-1] > 3.5
    assert doubtful[-1] > 2 * certain[-1]


@pytest.mark.parametrize("seed", range(20))
def test_smaller_trees_are_prefixes_of_the_ranking(seed: int) -> None:
    """The first n nodes of a ranking form a tree, so `nodes_needed` is the size that accepts a path."""
    rng, builder = random.Random(seed), TreeBuilder(ROOT)
    for token in range(12):
        builder.propose_points(rng.randrange(len(builder)), [token], [rng.random()])
    tree = builder.build()
    ranked, parents = ranked_nodes(tree), tree.parents.tolist()
    assert sorted(ranked) == list(range(1, 13))
    for place, node in enumerate(ranked):
        assert parents[node] == 0 or parents[node] in ranked[:place]
    path = [ranked[-1]]
    while parents[path[0]]:
        path.insert(0, parents[path[0]])
    needed = nodes_needed(path, ranked)
    assert needed == sorted(needed)
    assert needed[-1] == len(ranked) - 1
    assert len(SIZES) == len(set(SIZES))


def test_steps_without_outcomes_count_no_tree() -> None:
    gains = gains_of("a")
    gains.observe([StepReport(Choice(BOTH, 4, 4), 1, 0, 0.0, [], 0.0, {})])
    assert gains.largest == 0


def test_a_request_that_begins_again_has_read_nothing_more_than_its_context() -> None:
    gains = gains_of("a")
    (one, other) = sorted(BOTH)
    gains.note_drafts(frozenset({one}))
    gains.follow({"a": 4})
    assert gains.unread() == {one: 0, other: 4}, "the other speculator has not drafted"
