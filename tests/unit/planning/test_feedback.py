"""Steps teach: costs go to the planner, outcomes to planner and calibration."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.feedback import FinishedStep, StepTimes, learn
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.sampling import Sampling
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.limits import NodeBudget
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.statuses import EntryStatus
from specinfer.tree import TreeLimits, merge_trees
from tests.support.oracle import chain

ROOT = 7
BOTH = frozenset({0, 1})


class Listening(TablePlanner):
    """A planner that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(PassCurve([(1, 0.005)]), NodeBudget(8, 8))
        self.told: list[StepReport] = []

    def observe(self, report: StepReport) -> None:
        self.told.append(report)


def entry(
    name: str, after: Sequence[int], speculation: Speculation = Speculation.TREE, delta: int = 1
) -> StepEntry:
    request = GenerationRequest(name, (3, ROOT), 8, Sampling(temperature=0), speculation=speculation)
    state = RequestState(request, 0.0, 0, request.sampling, [3, ROOT, *after])
    return StepEntry(state, 2 - delta, (3, ROOT)[-delta:], True, TreeLimits(4, 4), 4)


def step(entries: Sequence[StepEntry], times: Sequence[DraftTime] = ()) -> FinishedStep:
    """Speculator 0 drafts 4, 5 for everybody, speculator 1 drafts 6; two nodes are said to be accepted."""
    drafts = {e.request_id: [(0, chain(ROOT, [4, 5])), (1, chain(ROOT, [6]))] for e in entries}
    trees = {name: merge_trees(draft) for name, draft in drafts.items()}
    verdict = VerdictEntry(EntryStatus.OK, accepted=(1, 2))
    phases = StepTimes(began=1.0, started=1.002, drafted=1.005, merged=1.006, verified=1.018, done=1.020)
    return FinishedStep(
        Choice(BOTH, 4, 4, tokens=2.5, seconds=0.018, reason="fastest"),
        entries,
        drafts,
        trees,
        {e.request_id: verdict for e in entries},
        times,
        0.010,
        phases,
    )


def test_the_planner_learns_what_a_step_cost_and_brought() -> None:
    planner = Listening()
    draft_times = [DraftTime(BOTH, {0: 0.001, 1: 0.0005}, 0.0005)]
    wants_none = entry("plain", [4], Speculation.OFF)
    learn(step([entry("a", [4, 5, 8]), wants_none], draft_times), planner, Calibration())
    (report,) = planner.told
    assert (report.batch, report.tokens, report.pass_s) == (2, 8, 0.010)
    assert report.overhead_s == pytest.approx(0.020 - 0.010 - 0.002)
    assert {name: accepted for name, (_, accepted) in report.outcomes.items()} == {"a": (1, 2)}


def test_waiting_in_vain_for_drafts_is_nobodys_cost() -> None:
    planner = Listening()
    learn(step([entry("a", [8])]), planner, Calibration())
    assert planner.told[0].overhead_s == pytest.approx(0.020 - 0.010 - 0.003)


def test_steps_that_read_prompts_tell_the_planner_nothing() -> None:
    planner = Listening()
    learn(step([entry("a", [4]), entry("b", [4], delta=2)]), planner, Calibration())
    assert not planner.told


def test_chains_are_told_apart_from_merged_trees() -> None:
    planner = Listening()
    learn(step([entry("a", [4]), entry("b", [4], Speculation.SEQUENCE)]), planner, Calibration())
    (report,) = planner.told
    assert (set(report.outcomes), set(report.chains)) == ({"a"}, {"b"})


def test_the_log_says_what_was_expected_and_what_came(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    learn(step([entry("a", [4, 5, 8])]), Listening(), Calibration())
    (line,) = [record.getMessage() for record in caplog.records if "batch 1" in record.getMessage()]
    assert line == (
        "batch 1: fastest, speculators [0, 1], 3 of 4 nodes; tokens 3 (expected 2.5), ms 20.0 (expected 18.0)"
    )


def test_drafts_are_counted_against_what_followed() -> None:
    """Speculator 0 is always right, speculator 1 never: scores move apart."""
    calibration = Calibration()
    for _ in range(100):
        learn(step([entry("a", [4, 5, 8])]), Listening(), calibration)
    assert calibration.correct(0, chain(ROOT, [4])).scores[1] > 0.7
    assert calibration.correct(1, chain(ROOT, [6])).scores[1] < 0.3


def test_refused_entries_teach_nothing() -> None:
    """Their trees are drafted again from the same root, with the same draws: a choice that knew what was
    drawn would bias the output."""
    planner, mixed = Listening(), step([entry("a", [4, 5, 8]), entry("b", [4, 5, 8])])
    refused = VerdictEntry(EntryStatus.RESYNC)
    learn(replace(mixed, verdicts={**mixed.verdicts, "b": refused}), planner, Calibration())
    (report,) = planner.told
    assert report.outcomes.keys() == {"a"}
    assert report.tokens == len(mixed.trees["a"])
