"""Results of a step: costs go to the planner, outcomes to the planner and the calibration."""

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
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.limits import NodeBudget
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.tree import TreeLimits, merge_trees
from tests.support.oracle import chain

ROOT = 7
BOTH = frozenset({0, 1})


class RecordingPlanner(TablePlanner):
    """A planner that stores the reports that it receives."""

    def __init__(self) -> None:
        super().__init__(PassCurve([(1, 0.005)]), NodeBudget(8, 8))
        self.reports: list[StepReport] = []

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)


def entry(
    name: str, after: Sequence[int], speculation: Speculation = Speculation.TREE, delta: int = 1
) -> StepEntry:
    request = GenerationRequest(name, (3, ROOT), 8, Sampling(temperature=0), speculation=speculation)
    state = RequestState(request, 0.0, 0, request.sampling, [3, ROOT, *after])
    return StepEntry(state, 2 - delta, (3, ROOT)[-delta:], True, TreeLimits(4, 4), 4)


def step(entries: Sequence[StepEntry], times: Sequence[DraftTime] = ()) -> FinishedStep:
    """Return a step: speculator 0 drafts 4-5 for each entry, speculator 1 drafts 6; two nodes are accepted."""
    drafts = {e.request_id: [(0, chain(ROOT, [4, 5])), (1, chain(ROOT, [6]))] for e in entries}
    trees = {name: merge_trees(draft) for name, draft in drafts.items()}
    verdict = Verdict(EntryStatus.OK, accepted=(1, 2))
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


def test_the_planner_learns_costs_and_tokens_of_a_step() -> None:
    planner = RecordingPlanner()
    draft_times = [DraftTime(BOTH, {0: 0.001, 1: 0.0005}, 0.0005)]
    wants_none = entry("plain", [4], Speculation.OFF)
    learn(step([entry("a", [4, 5, 8]), wants_none], draft_times), planner, Calibration())
    (report,) = planner.reports
    assert (report.batch, report.tokens, report.pass_s) == (2, 8, 0.010)
    assert report.overhead_s == pytest.approx(0.020 - 0.010 - 0.002)
    assert {name: accepted for name, (_, accepted) in report.outcomes.items()} == {"a": (1, 2)}


def test_waiting_for_late_drafts_is_not_counted_as_cost() -> None:
    planner = RecordingPlanner()
    learn(step([entry("a", [8])]), planner, Calibration())
    assert planner.reports[0].overhead_s == pytest.approx(0.020 - 0.010 - 0.003)


def test_steps_that_read_prompts_are_not_reported_to_the_planner() -> None:
    planner = RecordingPlanner()
    learn(step([entry("a", [4]), entry("b", [4], delta=2)]), planner, Calibration())
    assert not planner.reports


def test_chains_are_reported_apart_from_merged_trees() -> None:
    planner = RecordingPlanner()
    learn(step([entry("a", [4]), entry("b", [4], Speculation.SEQUENCE)]), planner, Calibration())
    (report,) = planner.reports
    assert (set(report.outcomes), set(report.chains)) == ({"a"}, {"b"})


def test_the_log_has_expected_and_actual_tokens_and_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    learn(step([entry("a", [4, 5, 8])]), RecordingPlanner(), Calibration())
    (line,) = [record.getMessage() for record in caplog.records if "batch 1" in record.getMessage()]
    assert line == (
        "batch 1: fastest, speculators [0, 1], 3 of 4 nodes; tokens 3 (expected 2.5), ms 20.0 (expected 18.0)"
    )


def test_scores_are_calibrated_by_the_tokens_that_followed() -> None:
    """Speculator 0 is always right, speculator 1 never, so their scores diverge."""
    calibration = Calibration()
    for _ in range(100):
        learn(step([entry("a", [4, 5, 8])]), RecordingPlanner(), calibration)
    assert calibration.correct(0, chain(ROOT, [4])).scores[1] > 0.7
    assert calibration.correct(1, chain(ROOT, [6])).scores[1] < 0.3


def test_refused_entries_teach_nothing() -> None:
    """Refused trees are drafted again with the same draws: learning from the draws would bias the output."""
    planner, mixed = RecordingPlanner(), step([entry("a", [4, 5, 8]), entry("b", [4, 5, 8])])
    refused = Verdict(EntryStatus.RESYNC)
    learn(replace(mixed, verdicts={**mixed.verdicts, "b": refused}), planner, Calibration())
    (report,) = planner.reports
    assert report.outcomes.keys() == {"a"}
    assert report.tokens == len(mixed.trees["a"])
