"""Statistics of a finished step, for the planner and the calibration. Pure.

The loop learns from a step when the next one is under way: nothing in it waits for that. So a choice knows
all steps but the last.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.step_report import DraftTime, Outcomes, StepPlanner, StepReport
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.request import Speculation
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)

Drafts = Mapping[str, Sequence[tuple[int, TokenTree]]]
"""(speculator, tree) by request."""


class StepTimes(NamedTuple):
    """When the phases of a step ended, on a monotonic clock."""

    began: float
    """End of the previous step, or this step's start after a pause."""
    started: float
    drafted: float
    merged: float
    verified: float
    done: float


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A finished step: its choice, its times and its outcome."""

    choice: Choice
    entries: Sequence[StepEntry]
    drafts: Drafts
    """Drafts of speculators outside the verifier's process."""
    trees: Mapping[str, TokenTree]
    """Trees as they were verified."""
    verdicts: Mapping[str, VerdictEntry]
    draft_times: Sequence[DraftTime]
    pass_s: float
    times: StepTimes
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    """Counts of the verified trees and of the drafts."""

    @property
    def phases(self) -> list[float]:
        """Seconds of drafting, merging, verifying and committing."""
        return [end - start for start, end in pairwise(self.times[1:])]

    @property
    def seconds(self) -> float:
        """Seconds of the whole step, from the end of the one before."""
        return self.times.done - self.times.began

    @property
    def overhead_s(self) -> float:
        """Seconds of the step besides the pass and drafting.

        Where no draft came in time, the wait counts as neither a drafter's nor plain decoding's.
        """
        drafting = self.times.drafted - self.times.started
        if self.draft_times:
            resident = sum([draft.total_s for draft in self.draft_times if draft.resident])
            drafting = resident + max([d.total_s for d in self.draft_times if not d.resident], default=0.0)
        return self.seconds - self.pass_s - drafting


def learn(step: FinishedStep, planner: StepPlanner, calibration: Calibration) -> None:
    """Pass a step to both."""
    report = report_of(step)
    if report is not None:
        planner.observe(report)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", _line(step, report))
    for entry in step.entries:
        after = entry.state.tokens[entry.context_len :]
        for index, draft in step.drafts.get(entry.request_id, ()):
            calibration.observe(index, draft, after)
        tree, verdict = step.trees.get(entry.request_id), step.verdicts.get(entry.request_id)
        if tree is not None and len(tree) > 1 and verdict is not None and verdict.status is EntryStatus.OK:
            calibration.observe_draws(tree, verdict.accepted)


def report_of(step: FinishedStep) -> StepReport | None:
    """Return the planner's report of a step; None if it read prompts."""
    if any(not entry.final or len(entry.delta) > 1 for entry in step.entries):
        return None
    return StepReport(
        choice=step.choice,
        batch=len(step.entries),
        tokens=sum(len(step.trees[entry.request_id]) for entry in step.entries),
        pass_s=step.pass_s,
        drafts=step.draft_times,
        overhead_s=step.overhead_s,
        outcomes=_outcomes(step, Speculation.TREE),
        chains=_outcomes(step, Speculation.SEQUENCE),
        contexts=contexts_of(step),
        seconds=step.seconds,
    )


def contexts_of(step: FinishedStep) -> dict[str, int]:
    """Return the tokens of the requests when the step began."""
    return {entry.request_id: entry.context_len for entry in step.entries}


def _outcomes(step: FinishedStep, speculation: Speculation) -> Outcomes:
    """Return outcomes by request.

    A refused entry is left out: nothing of it was verified, and its tree will be drafted again from the same
    root, with the same draws, so that no choice may depend on it.
    """
    return {
        entry.request_id: (step.trees[entry.request_id], verdict.accepted)
        for entry in step.entries
        if entry.state.request.speculation is speculation
        and (verdict := step.verdicts.get(entry.request_id)) is not None
        and verdict.status is EntryStatus.OK
    }


def _line(step: FinishedStep, report: StepReport) -> str:
    """Return choice, expectation and outcome in one line."""
    choice = step.choice
    accepted = sum(len(verdict.accepted) for verdict in step.verdicts.values())
    return (
        f"batch {report.batch}: {choice.reason}, speculators {sorted(choice.speculators)}, "
        f"{report.tokens - report.batch} of {choice.step_nodes} nodes; tokens {report.batch + accepted} "
        f"(expected {choice.tokens:.1f}), ms {1000 * step.seconds:.1f} (expected {1000 * choice.seconds:.1f})"
    )
