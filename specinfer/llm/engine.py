"""The engine of `LLM`: scheduler, drafters and verifier in one thread.

    submit(request) -> step() -> progress of requests, until none is left

A step is one iteration of `specinfer.engine.step`, carried out by a host in this process. Invariant: a fault in a
step ends only the request that caused it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from specinfer.engine.host import Host, HostPlan, HostStep
from specinfer.engine.local_pool import LocalPool, MemberCounts
from specinfer.engine.step import Committed, StepMachine, StepPlan, Verified
from specinfer.llm.metrics import Metric, Totals, speculator_metrics
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.constraints.matcher import Matcher
from specinfer.verification.engine import VerifierEngine

log = logging.getLogger(__name__)


class LocalEngine:
    """Decode requests. Not thread-safe."""

    def __init__(self, machine: StepMachine, host: Host) -> None:
        self.machine, self.host = machine, host
        self.host_of: Callable[[Any], tuple[StepMachine, Host]] = lambda groups: (machine, host)
        """Makes new parts for other groups of drafters."""
        self.totals = Totals()
        self._drafted: dict[int, MemberCounts] = {}
        """Counts of each speculator since the start."""
        self.default_sampling: Mapping[str, Any] = {}
        """The model's defaults of sampling parameters."""
        self.groups_of: Callable[..., Any] = lambda draft, speculators: []
        """Loads the groups of drafters that two options of `LLM` name."""
        self.on_close: Callable[[], None] = lambda: None
        """Called once when the engine is closed."""

    @property
    def pool(self) -> LocalPool:
        return self.host.pool

    @property
    def verifier(self) -> VerifierEngine:
        """The model and its cache."""
        return self.host.verifier

    @property
    def _compiler(self) -> Compiler | None:
        return self.host.compiler

    @property
    def busy(self) -> bool:
        return bool(self.machine.scheduler.states)

    def use_drafters(self, groups: Any) -> None:
        """Replace all drafters, between requests; keep what was learned of the old."""
        before, (self.machine, self.host) = self.machine, self.host_of(groups)
        before.planner.close()
        self._drafted = {}

    def submit(self, request: GenerationRequest) -> RequestState:
        """Queue a request.

        Raises:
            InvalidInputError: naming the field and value that the model cannot serve.
            AlreadyExistsError: if a request of this id waits or runs.
            ExhaustedError: if the queue is full.
        """
        config, limits = self.verifier.runner.config, self.verifier.limits
        request.check_against(config.vocab_size, limits.max_context_len)
        if request.constraint is not None:
            if self._compiler is None:
                raise request.constraint.error(
                    "must be absent: the model's tokenizer does not allow constraints"
                )
            self._compiler.begin(request.constraint).result()  # no wait if `compile` was called before
        return self.machine.scheduler.submit(request, time.monotonic(), self.pool.draws)

    def compile(self, constraint: Constraint) -> "Future[Matcher] | None":
        """Compile a constraint in the background; None if constraints are unsupported."""
        return None if self._compiler is None else self._compiler.begin(constraint)

    def cancel(self, request_id: str) -> None:
        """End a request at once; unknown ids are ignored."""
        if request_id in self.machine.scheduler.states:
            self.machine.scheduler.drop(request_id)
            self._release([request_id])

    def metrics(self) -> list[Metric]:
        """Return the counters since the start."""
        scheduler = self.machine.scheduler
        return [
            *self.totals.metrics(scheduler.running, scheduler.waiting),
            *speculator_metrics(self.pool.names, self._drafted),
        ]

    def close(self) -> None:
        """Stop the threads, and the other processes that share the model."""
        if self._compiler is not None:
            self._compiler.close()
        self.on_close()
        self.machine.planner.close()

    def step(self) -> list[Progress]:
        """Decode one step of the whole batch."""
        progress = self.machine.scheduler.reap(time.monotonic())
        plan = self.machine.plan(time.monotonic(), self.pool)
        if preempted := self.machine.scheduler.take_preempted():
            self.verifier.release(preempted)
        if plan.entries:
            for committed in self._decode(plan):
                progress += committed.progress
                self._learn(committed.step)
        self._release([item.request_id for item in progress if item.final])
        return progress

    def _decode(self, plan: StepPlan) -> list[Committed]:
        """Run a step: the host drafts, merges and verifies."""
        running = self.machine.begin(plan)
        step = self.host.step(HostPlan(plan.entries, plan.choice.speculators, plan.choice.keeps))
        committed = running.commit([_verified(step)])
        self.host.conclude([step])
        for number, counts in step.drafted.items():
            self._drafted.setdefault(number, MemberCounts()).__iadd__(counts)
        return committed

    def _learn(self, step: FinishedStep) -> None:
        """Let the planner learn from a step. A fault is only logged."""
        try:
            self.machine.learn(step)
            self.totals.add(step)
        except Exception:
            log.exception("learning from a step failed; the planner ignores this step")
            self.totals.failed_steps += 1
        self.totals.failed_drafts = self.host.failed_drafts

    def _release(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            self.host.release(request_ids)


def _verified(step: HostStep) -> Verified:
    return Verified(
        step.trees,
        step.verdicts,
        step.pass_s,
        step.draft_s + step.verify_s,
        step.draft_s,
        step.draft_times,
        {number: counts.nodes for number, counts in step.drafted.items()},
    )
