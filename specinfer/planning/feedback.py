"""Update the planner and the calibration with a finished step. Pure.

The loop learns from a step while the next step runs, so learning delays nothing, and a choice knows all steps
but the last.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.step_report import DraftTime, Outcomes, StepPlanner, StepReport
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)

Drafts = Mapping[str, Sequence[tuple[int, TokenTree]]]
"""Pairs (speculator number, tree) by request id."""


class StepTimes(NamedTuple):
    """Ends of a step's phases, in seconds of a monotonic clock."""

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
    """Drafts of the speculator services, without resident speculators."""
    trees: Mapping[str, TokenTree]
    """Verified trees by request id."""
    verdicts: Mapping[str, Verdict]
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
        """Seconds of the whole step, from the end of the previous step."""
        return self.times.done - self.times.began

    @property
    def overhead_s(self) -> float:
        """Seconds of the step without the pass and the drafting.

        If no draft arrived in time, the wait for drafts is subtracted, too.
        """
        drafting = self.times.drafted - self.times.started
        if self.draft_times:
            resident = sum([draft.total_s for draft in self.draft_times if draft.resident])
            drafting = resident + max([d.total_s for d in self.draft_times if not d.resident], default=0.0)
        return self.seconds - self.pass_s - drafting


def learn(step: FinishedStep, planner: StepPlanner, calibration: Calibration) -> None:
    """Update the planner and the calibration with a step."""
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
    """Return a step's report for the planner; None if it read prompts."""
    if any(not entry.final or len(entry.delta) > 1 for entry in step.entries):
        return None
    return StepReport(
        choice=step.choice,
        batch=len(step.entries),
        tokens=sum(
            [len(step.trees[entry.request_id]) for entry in step.entries if _is_verified(step, entry)]
        ),
        pass_s=step.pass_s,
        drafts=step.draft_times,
        overhead_s=step.overhead_s,
        outcomes=_outcomes(step, Speculation.TREE),
        chains=_outcomes(step, Speculation.SEQUENCE),
        contexts=contexts_of(step),
        seconds=step.seconds,
    )


def contexts_of(step: FinishedStep) -> dict[str, int]:
    """Return the context tokens by request id when the step began."""
    return {entry.request_id: entry.context_len for entry in step.entries}


def _outcomes(step: FinishedStep, speculation: Speculation) -> Outcomes:
    """Return the outcomes of requests with a mode of speculation.

    A refused entry is left out: its tree was not verified and will be drafted again with the same draws, so
    no choice may depend on the tree.
    """
    return {
        entry.request_id: (step.trees[entry.request_id], step.verdicts[entry.request_id].accepted)
        for entry in step.entries
        if entry.state.request.speculation is speculation and _is_verified(step, entry)
    }


def _is_verified(step: FinishedStep, entry: StepEntry) -> bool:
    verdict = step.verdicts.get(entry.request_id)
    return verdict is not None and verdict.status is EntryStatus.OK


def _line(step: FinishedStep, report: StepReport) -> str:
    """Return a log line with a step's choice, expected and measured speed."""
    choice = step.choice
    accepted = sum(len(verdict.accepted) for verdict in step.verdicts.values())
    return (
        f"batch {report.batch}: {choice.reason}, speculators {sorted(choice.speculators)}, "
        f"{report.tokens - report.batch} of {choice.step_nodes} nodes; tokens {report.batch + accepted} "
        f"(expected {choice.tokens:.1f}), ms {1000 * step.seconds:.1f} (expected {1000 * choice.seconds:.1f})"
    )
