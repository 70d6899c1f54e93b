"""An iteration of decoding, without I/O.

    plan(now)          -> requests, speculators and nodes of the step
    begin(plan)        -> the running step: merge(drafts), then commit(verdicts) (paper, sections 3 and 4)
    learn(step)        -> acceptance and costs, for the steps after the next one

The caller drafts and verifies: `specinfer.llm` with a host in its process, the gateway with services over gRPC.
Invariant: the planner's choice depends on committed tokens, earlier steps and time only, so it never biases the
output.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import PLAIN, Choice, SpeculatorSet, fixed_choice
from specinfer.planning.feedback import Drafts, FinishedStep, StepTimes, learn
from specinfer.planning.step_report import DraftTime, StepPlanner
from specinfer.planning.trees import trees_to_verify
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import Progress, StepEntry
from specinfer.scheduling.request import RequestState, Speculation
from specinfer.scheduling.scheduler import Scheduler
from specinfer.scheduling.statistics import count_all
from specinfer.tree import TokenTree

_SHOWN_NODES = 8
"""Maximum nodes of trees for requests that ask for trees always."""


class StepPlan(NamedTuple):
    choice: Choice
    entries: list[StepEntry]
    """One entry per request; empty if no request can run."""
    admitted: list[RequestState]
    """Requests that left the queue for this step."""


class Verified(NamedTuple):
    """One step of the verifier's host."""

    trees: Mapping[str, TokenTree]
    """Verified trees, including the host's drafts."""
    verdicts: Mapping[str, Verdict]
    pass_s: float
    host_s: float
    """Seconds of the step at the host."""
    draft_s: float = 0.0
    """Part of `host_s` for drafting and merging."""
    draft_times: Sequence[DraftTime] = ()
    proposed: Mapping[int, int] = MappingProxyType({})
    """Number of nodes that each speculator of the host proposed."""


class Committed(NamedTuple):
    """A finished step, with its requests' progress."""

    step: FinishedStep
    progress: list[Progress]


class Pool(Protocol):
    """Speculators that may draft in a step."""

    @property
    def groups(self) -> Sequence[SpeculatorSet]:
        """Numbers of the available speculators, one set per service."""


class StepMachine:
    """The requests of one target model, from plan to plan."""

    def __init__(
        self,
        scheduler: Scheduler,
        planner: StepPlanner,
        on_fault: Callable[[Exception], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join scheduler and planner.

        Args:
            scheduler: has the requests.
            planner: chooses speculators and nodes.
            on_fault: gets the planner's internal faults.
            clock: returns monotonic seconds.
        """
        self.scheduler, self.planner, self.calibration = scheduler, planner, Calibration()
        self._on_fault, self._clock = on_fault, clock
        self.choice = PLAIN
        """Choice of the latest plan."""
        self._last_done = 0.0
        """End of the last step, by the clock; 0 after a pause."""

    def plan(self, now: float, pool: Pool) -> StepPlan:
        """Admit requests, choose speculators and nodes, and plan each request's entry."""
        running, wanting = self.scheduler.admit(now)
        choice = self._choose(running, wanting, pool)
        entries = self.scheduler.plan(now, choice.nodes, choice.worth)
        if entries:
            self.choice = choice
        else:
            self.paused()
        return StepPlan(choice, entries, self.scheduler.take_admitted())

    def begin(self, plan: StepPlan) -> "RunningStep":
        """Start a planned step, before its drafts."""
        return RunningStep(self, plan, self._clock)

    def ended(self, now: float) -> float:
        """Note a step's end; return the previous step's, 0 after a pause."""
        before, self._last_done = self._last_done, now
        return before

    def paused(self) -> None:
        """Exclude idle time from the next step's duration."""
        self._last_done = 0.0

    def learn(self, step: FinishedStep) -> None:
        """Learn acceptance and costs of a step, perhaps after the next plan."""
        learn(step, self.planner, self.calibration)

    def _choose(self, running: int, wanting: Mapping[str, int], pool: Pool) -> Choice:
        """Return the planner's choice, or plain decoding after an internal fault."""
        try:
            self.planner.enrol(pool.groups)
            choice = self.planner.choose(running, wanting)
            return choice if choice.speculators else self._insisted(choice, running, wanting, pool)
        except Exception as error:  # noqa: BLE001  # plain decoding needs no planner
            self._on_fault(error)
            return PLAIN

    def _insisted(self, plain: Choice, running: int, wanting: Mapping[str, int], pool: Pool) -> Choice:
        """Return small trees instead of plain decoding, if all running requests want them."""
        states, everybody = self.scheduler.states, frozenset[int]().union(*pool.groups)
        asked = [name for name in wanting if states[name].request.speculation is Speculation.ALWAYS]
        if not everybody or not asked or len(asked) < running:
            return plain
        budget = self.scheduler.budget
        small = replace(budget, per_request=min(budget.per_request, _SHOWN_NODES))
        return replace(fixed_choice(small, everybody, running, running), plain_speed=plain.plain_speed)


class RunningStep:
    """A step between its plan and its commit; call `merge`, then `commit`."""

    def __init__(self, machine: StepMachine, plan: StepPlan, clock: Callable[[], float]) -> None:
        self._machine, self._plan, self._clock = machine, plan, clock
        self._drafts: Drafts = {}
        self._draft_times: Sequence[DraftTime] = ()
        self._started = self._drafted = self._merged = clock()

    def merge(self, drafts: Drafts, times: Sequence[DraftTime]) -> dict[str, TokenTree]:
        """Merge the services' drafts (Definition 3.2); return the trees to verify.

        Without drafts there are no trees: the verifier's host makes them.
        """
        self._drafts, self._draft_times, self._drafted = drafts, times, self._clock()
        plan, trees = self._plan, dict[str, TokenTree]()
        if drafts:
            trees = trees_to_verify(plan.entries, drafts, self._machine.calibration, plan.choice.keeps)
        self._merged = self._clock()
        return trees

    def commit(self, answer: Sequence[Verified]) -> list[Committed]:
        """Commit each step that the host ran by this plan; return the finished steps in order."""
        verified, machine = self._clock(), self._machine
        entries, committed = self._plan.entries, list[tuple[list[StepEntry], list[Progress]]]()
        for step in answer:
            if committed:
                entries = [entry.following() for entry in entries if entry.state.finish is None]
            progress = machine.scheduler.commit(entries, step.trees, step.verdicts, self._clock())
            committed.append((entries, progress))
        done = self._clock()
        began = machine.ended(done) or self._started
        whole = StepTimes(began, self._started, self._drafted, self._merged, verified, done)
        finished = list[Committed]()
        for (entries, progress), step, times in zip(
            committed, answer, step_times(whole, answer), strict=True
        ):
            finished.append(Committed(self._finished(entries, step, times, progress), progress))
            self._drafts, self._draft_times = {}, ()  # the services drafted for the first step only
        return finished

    def _finished(
        self, entries: Sequence[StepEntry], verified: Verified, times: StepTimes, progress: Sequence[Progress]
    ) -> FinishedStep:
        """Return a step's record, for learning and for statistics."""
        proposed = dict(verified.proposed)
        for drafts in self._drafts.values():
            for speculator, tree in drafts:
                proposed[speculator] = proposed.get(speculator, 0) + len(tree) - 1
        return FinishedStep(
            self._plan.choice,
            entries,
            self._drafts,
            verified.trees,
            verified.verdicts,
            [*self._draft_times, *verified.draft_times],
            verified.pass_s,
            times,
            count_all([item.counts for item in progress if item.counts is not None], proposed),
        )


def step_times(whole: StepTimes, steps: Sequence[Verified]) -> list[StepTimes]:
    """Return each step's times; time outside the host is shared equally.

    The host's drafting counts as drafting, not as verification.
    """
    if len(steps) == 1:
        merged = min(whole.merged + steps[0].draft_s, whole.verified)
        return [whole._replace(drafted=merged - (whole.merged - whole.drafted), merged=merged)]
    rest_s = max(0.0, whole.done - whole.began - sum([step.host_s for step in steps])) / len(steps)
    times, began = list[StepTimes](), whole.began
    for step in steps:
        drafted, done = began + step.draft_s, began + step.host_s + rest_s
        times.append(StepTimes(began, began, drafted, drafted, done, done))
        began = done
    return times
