"""Counts of a step by speculator, on the small tree of the docs."""

from specinfer.planning.feedback import FinishedStep, StepTimes
from specinfer.planning.planner import PLAIN
from specinfer.planning.step_counts import SpeculatorStep, count_step
from specinfer.remote.faults import DraftStatistics
from specinfer.scheduling.entries import VerdictEntry
from specinfer.scheduling.statistics import SpeculatorPart, outcome_of
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree, merge_trees
from tests.support.oracle import chain
from tests.support.trees import CAT, DOG, RAN, SAT, THE

BY_A, BY_B, BY_C = chain(THE, [CAT, SAT]), chain(THE, [CAT, RAN]), chain(THE, [DOG])
MERGED = merge_trees([(0, BY_A), (1, BY_B), (2, BY_C)])
"""the-+-cat-+-sat, the-dog; nodes 1 cat, 2 sat, 3 ran, 4 dog."""


def test_every_speculator_gets_its_part_of_a_tree() -> None:
    assert MERGED.token_ids.tolist() == [THE, CAT, SAT, RAN, DOG]
    assert outcome_of(MERGED, (1, 2)) == (
        4,
        2,
        {
            0: SpeculatorPart(drafted=2, accepted=2, won=True, duplicate=1),
            1: SpeculatorPart(drafted=2, accepted=1, won=False, duplicate=1),
            2: SpeculatorPart(drafted=1, accepted=0, won=False, duplicate=0),
        },
    )
    nothing = outcome_of(MERGED, ())
    assert not any(part.won for part in nothing.speculators.values()), "an empty path is nobody's"
    three = outcome_of(merge_trees([(n, chain(THE, [CAT])) for n in range(3)]), ())
    assert [part.duplicate for part in three.speculators.values()] == [1, 1, 1]


def test_a_step_sums_its_trees_and_leaves_plain_decoding_out() -> None:
    trees = {"r1": MERGED, "r2": TokenTree.root_only(THE), "r3": BY_A}
    drafts = {"r1": [(0, BY_A), (1, BY_B), (2, BY_C)], "r3": [(0, BY_A)], "r4": [(2, BY_A)]}
    outcomes = [outcome_of(MERGED, (1, 2)), outcome_of(trees["r2"], ()), outcome_of(BY_A, (1,))]
    verdicts = {"r4": VerdictEntry(EntryStatus.RESYNC), "r1": VerdictEntry(EntryStatus.OK)}
    times = StepTimes(0, 0, 0, 0, 0, 0)
    counts = count_step(FinishedStep(PLAIN, [], drafts, trees, verdicts, [], 0.0, times, outcomes))
    assert (counts.nodes, counts.depths, counts.resyncs) == (6, [2, 1], 1)
    assert (counts.tokens, counts.accepted, counts.positions) == (3 + 1 + 2, 3, [2, 1])
    assert counts.speculators == {
        0: SpeculatorStep(drafts=2, proposed=4, kept=4, duplicate=1, accepted=3, wins=2),
        1: SpeculatorStep(drafts=1, proposed=2, kept=2, duplicate=1, accepted=1),
        2: SpeculatorStep(drafts=1, proposed=3, kept=1),
    }


def test_books_are_taken_once() -> None:
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
