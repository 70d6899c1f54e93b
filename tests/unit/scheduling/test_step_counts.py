"""Counts of trees and steps by speculator, on the small tree of the docs."""

from specinfer.engine.draft_faults import DraftStatistics
from specinfer.scheduling.statistics import SpeculationCounts, SpeculatorCounts, count_all, count_tree
from specinfer.tree import TokenTree, merge_trees
from tests.support.oracle import chain
from tests.support.trees import CAT, DOG, RAN, SAT, THE

BY_A, BY_B, BY_C = chain(THE, [CAT, SAT]), chain(THE, [CAT, RAN]), chain(THE, [DOG])
MERGED = merge_trees([(0, BY_A), (1, BY_B), (2, BY_C)])
"""the-+-cat-+-(sat, ran), the-dog; nodes 1 cat, 2 sat, 3 ran, 4 dog."""


def test_every_speculator_gets_its_part_of_a_tree() -> None:
    assert MERGED.token_ids.tolist() == [THE, CAT, SAT, RAN, DOG]
    assert count_tree(MERGED, (1, 2)) == SpeculationCounts(
        1,
        1,
        4,
        2,
        [0, 0, 1],
        {
            0: SpeculatorCounts(drafts=1, drafted=2, duplicate=1, accepted=2, wins=1),
            1: SpeculatorCounts(drafts=1, drafted=2, duplicate=1, accepted=1),
            2: SpeculatorCounts(drafts=1, drafted=1),
        },
    )
    nothing = count_tree(MERGED, ())
    assert not any(part.wins for part in nothing.speculators.values()), "an empty path has no winner"
    three = count_tree(merge_trees([(n, chain(THE, [CAT])) for n in range(3)]), ())
    assert [part.duplicate for part in three.speculators.values()] == [1, 1, 1]


def test_a_step_sums_its_trees_and_counts_plain_decoding_separately() -> None:
    trees = [count_tree(MERGED, (1, 2)), count_tree(TokenTree.root_only(THE), ()), count_tree(BY_A, (1,))]
    counts = count_all(trees, {0: 4, 1: 2, 2: 3})
    assert (counts.steps, counts.trees, counts.drafted, counts.tokens) == (3, 2, 6, 3 + 1 + 2)
    assert (counts.histogram, counts.depths, counts.positions) == ([1, 1, 1], [0, 1, 1], [2, 1])
    assert counts.speculators == {
        0: SpeculatorCounts(drafts=2, proposed=4, drafted=4, duplicate=1, accepted=3, wins=2),
        1: SpeculatorCounts(drafts=1, proposed=2, drafted=2, duplicate=1, accepted=1),
        2: SpeculatorCounts(drafts=1, proposed=3, drafted=1),
    }
    assert trees[0] == count_tree(MERGED, (1, 2)), "the added counts do not change"


def test_nothing_was_counted_at_first() -> None:
    counts = SpeculationCounts()
    assert (counts.tokens, counts.depths, counts.positions) == (0, [], [])


def test_counts_are_taken_once() -> None:
    statistics = DraftStatistics()
    assert not statistics
    statistics.count("ok", 0)
    assert not statistics, "nothing was counted"
    statistics.count("ok", 2)
    statistics.count("late")
    statistics.resyncs += 1
    taken = statistics.take()
    assert (taken.outcomes, taken.resyncs) == ({"ok": 2, "late": 1}, 1)
    assert not statistics
