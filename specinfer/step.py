"""One iteration of decoding, without I/O: the caller drafts and verifies, this module plans and commits.

    plan(now)                     -> who takes part, which speculators draft, how many nodes
    merge(plan, drafts)           -> the trees to verify: corrected, merged, cut over the whole batch (section 3)
    commit(plan, trees, verdicts) -> the progress of each request
    learn(finished)               -> acceptance and costs, for the steps after the next one

The caller owns the I/O: `specinfer.llm` calls drafters and verifier directly, the gateway over gRPC.
Invariant: a choice depends on committed tokens, earlier steps and time only, so it never biases the output.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from specinfer.planning.calibration import Calibration
from specinfer.planning.feedback import Drafts, FinishedStep, StepTimes, learn
from specinfer.planning.latency import DraftTime, SpeculatorSet
from specinfer.planning.planner import PLAIN, Choice, Planner
from specinfer.planning.trees import trees_to_verify
from specinfer.scheduling.entries import Progress, StepEntry, VerdictEntry
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.scheduler import Scheduler
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)


class StepPlan(NamedTuple):
    """Plan of one iteration."""

    choice: Choice
    following: Choice
    """Choice of the next step, where drafts for it are made behind this one's verdicts."""
    entries: list[StepEntry]
    """Parts of the requests; empty if there is nothing to do."""
    admitted: list[RequestState]
    """Requests that begin to run with this step."""


class Verified(NamedTuple):
    """Results and seconds of drafting and verifying a plan."""

    drafts: Drafts
    trees: Mapping[str, TokenTree]
    verdicts: Mapping[str, VerdictEntry]
    draft_times: Sequence[DraftTime]
    pass_s: float
    times: StepTimes
    next_draft_s: float = 0.0
    """Seconds in which the verifier's own speculators drafted for the next step."""


class Pool(Protocol):
    """The speculators that a step may use."""

    @property
    def groups(self) -> Sequence[SpeculatorSet]:
        """Numbers of the present speculators, one set per service."""

    @property
    def drafts_ahead(self) -> bool:
        """True if any speculator has drafted, or is drafting, for the step that is planned next."""


class StepMachine:
    """The requests of one target model, from plan to plan."""

    def __init__(
        self, scheduler: Scheduler, planner: Planner, on_fault: Callable[[Exception], None] = lambda _: None
    ) -> None:
        """Put scheduler and planner together; `on_fault` gets errors that cost a step its drafts."""
        self.scheduler, self.planner, self.calibration = scheduler, planner, Calibration()
        self._on_fault = on_fault
        self.choice = self._following = PLAIN
        """Choice of the latest plan, and of the next where drafts are made ahead."""

    def plan(self, now: float, pool: Pool) -> StepPlan:
        """Admit requests, choose what to draft, and give each request its part of the step.

        Where speculators draft before the step begins, the choice is one step old: it is what they draft by.
        """
        running, wanting = self.scheduler.admit(now)
        following = self._choose(running, wanting, pool)
        choice = self._following if pool.drafts_ahead else following
        entries = self.scheduler.plan(now, choice.nodes, choice.node_threshold)
        if entries:
            self.choice, self._following = choice, following
        return StepPlan(choice, following, entries, self.scheduler.take_admitted())

    def merge(self, plan: StepPlan, drafts: Drafts) -> dict[str, TokenTree]:
        """Unite the drafts of each request (Definition 3.2) and keep the most probable nodes of the batch."""
        return trees_to_verify(plan.entries, drafts, self.calibration, plan.choice.keeps)

    def commit(
        self,
        plan: StepPlan,
        trees: Mapping[str, TokenTree],
        verdicts: Mapping[str, VerdictEntry],
        now: float,
    ) -> list[Progress]:
        """Append the accepted paths and bonus tokens to their requests; return what moved."""
        return self.scheduler.commit(plan.entries, trees, verdicts, now)

    def finished(self, plan: StepPlan, verified: Verified, progress: Sequence[Progress]) -> FinishedStep:
        """Return all facts of a step for learning and for reports."""
        outcomes = [item.outcome for item in progress if item.outcome is not None]
        facts = verified._asdict()
        return FinishedStep(plan.choice, plan.entries, outcomes=outcomes, **facts)

    def learn(self, step: FinishedStep) -> None:
        """Learn acceptance and costs from a step; may come after the next plan."""
        learn(step, self.planner, self.calibration)

    def _choose(self, running: int, wanting: Mapping[str, int], pool: Pool) -> Choice:
        """Get the planner's choice; a fault of ours in it costs the step its drafts, not its tokens."""
        try:
            self.planner.enrol(pool.groups)
            return self.planner.choose(running, wanting)
        except Exception as error:  # noqa: BLE001  # whatever it is, plain decoding goes on
            self._on_fault(error)
            return PLAIN
