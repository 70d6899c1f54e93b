"""The engine of `LLM`: scheduler, drafters and verifier of one model in one thread, step by step.

    submit(request) -> step() -> progress of requests, until none is left

Each step is the paragraph of `specinfer.step`, with direct calls in the place of messages. Invariant: a step that
fails ends the request that causes it, and no other.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint
from specinfer.constraints.matcher import Matcher
from specinfer.llm.metrics import Metric, Totals
from specinfer.llm.pool import LocalPool
from specinfer.planning.feedback import Drafts, StepTimes
from specinfer.planning.latency import DraftTime
from specinfer.planning.trees import give_matchers
from specinfer.scheduling.entries import Progress, StepEntry, VerdictEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.target_outputs import WantedOutputs
from specinfer.step import StepMachine, StepPlan, Verified
from specinfer.tree import TokenTree
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob, VerifyOutcome

log = logging.getLogger(__name__)


class LocalEngine:
    """Decodes requests; used by one thread at a time."""

    def __init__(
        self, machine: StepMachine, pool: LocalPool, verifier: VerifierEngine, compiler: Compiler | None
    ) -> None:
        self.machine, self.pool, self.verifier = machine, pool, verifier
        self._compiler = compiler
        self._last_done = 0.0
        self.totals = Totals()
        self.on_close: Callable[[], None] = lambda: None
        """Called once when the engine is closed."""

    @property
    def busy(self) -> bool:
        """True if any request waits or runs."""
        return bool(self.machine.scheduler.states)

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
                raise request.constraint.error("the model's tokenizer allows no constraints")
            self._compiler.begin(request.constraint).result()  # at once where `compile` has begun it
        return self.machine.scheduler.submit(request, time.monotonic(), self.pool.draws)

    def compile(self, constraint: Constraint) -> "Future[Matcher] | None":
        """Begin to compile a constraint beside the steps; None if there are none with this tokenizer."""
        return None if self._compiler is None else self._compiler.begin(constraint)

    def cancel(self, request_id: str) -> None:
        """End a request at once; unknown ids are ignored."""
        if request_id in self.machine.scheduler.states:
            self.machine.scheduler.drop(request_id)
            self._release([request_id])

    def cut(self, progress: Progress, keep: int) -> None:
        """End a request whose text reached a stop string after `keep` of its newest tokens."""
        was_final = progress.final
        self.machine.scheduler.cut(progress, keep, time.monotonic())
        if not was_final:
            self._release([progress.request_id])

    def metrics(self) -> list[Metric]:
        """Return the counters since the start."""
        scheduler = self.machine.scheduler
        return self.totals.metrics(scheduler.running, scheduler.waiting)

    def close(self) -> None:
        """End the threads, and the other processes that share the model."""
        if self._compiler is not None:
            self._compiler.close()
        self.on_close()

    def step(self) -> list[Progress]:
        """Decode one step of the whole batch."""
        progress = self.machine.scheduler.reap(time.monotonic())
        plan = self.machine.plan(time.monotonic(), self.pool)
        if preempted := self.machine.scheduler.take_preempted():
            self.verifier.release(preempted)
        if plan.entries:
            progress += self._iterate(plan)
        else:
            self._last_done = 0.0
        self._release([item.request_id for item in progress if item.final])
        return progress

    def _iterate(self, plan: StepPlan) -> list[Progress]:
        """Draft, merge, verify, commit, learn."""
        started = time.perf_counter()
        drafts, draft_times, trees, drafted = self._draft(plan)
        wanted = self.pool.wanted(plan.entries)
        merged = time.perf_counter()
        jobs = [_job(entry, trees.get(entry.request_id), wanted) for entry in plan.entries]
        verdicts = {outcome.request_id: _verdict(outcome) for outcome in self.verifier.verify(jobs)}
        self.pool.keep(wanted, trees, verdicts)
        verified = time.perf_counter()
        progress = self.machine.commit(plan, trees, verdicts, time.monotonic())
        self.verifier.settle()
        done = time.perf_counter()
        pass_s = sum(seconds for _, seconds in self.verifier.passes)
        times = StepTimes(self._last_done or started, started, drafted, merged, verified, done)
        self._last_done = done
        found = Verified(drafts, trees, verdicts, draft_times, pass_s, times)
        self._learn(plan, found, progress)
        return progress

    def _learn(self, plan: StepPlan, found: Verified, progress: Sequence[Progress]) -> None:
        """Learn from a step; a fault in it makes later steps slower, not wrong."""
        try:
            finished = self.machine.finished(plan, found, progress)
            self.machine.learn(finished)
            self.totals.add(finished)
        except Exception:
            log.exception("nothing is learnt from a step")
            self.totals.failed_steps += 1

    def _draft(self, plan: StepPlan) -> tuple[Drafts, list[DraftTime], dict[str, TokenTree], float]:
        """Return drafts, their times, the merged trees, and the time at which the drafts were complete.

        A fault in drafting or merging costs the step its drafts, not its tokens.
        """
        try:
            drafts, times = self.pool.draft(plan.entries, plan.choice.speculators)
            drafted = time.perf_counter()
            give_matchers([entry.state for entry in plan.entries], self._compiler)
            return drafts, times, self.machine.merge(plan, drafts), drafted
        except Exception:
            log.exception("drafting for %d requests failed; this step decodes plainly", len(plan.entries))
            self.totals.failed_steps += 1
            return {}, [], self.machine.merge(plan, {}), time.perf_counter()

    def _release(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            self.verifier.release(request_ids)
            self.pool.release(request_ids)


def _job(entry: StepEntry, tree: TokenTree | None, wanted: WantedOutputs) -> VerifyJob:
    """Return the verifier's part of a step for one request."""
    state, request, starts_over = entry.state, entry.state.request, entry.base_len == 0
    return VerifyJob(
        request.request_id,
        entry.base_len,
        list(entry.delta),
        tree,
        state.sampling,
        request.logprobs,
        request.top_logprobs,
        wanted.top_k.get(request.request_id, 0),
        wanted.features.since.get(request.request_id),
        len(request.prompt) if starts_over else 0,
        request.constraint if starts_over else None,
    )


def _verdict(outcome: VerifyOutcome) -> VerdictEntry:
    """Return the scheduler's form of a job's outcome."""
    verdict = outcome.verdict
    return VerdictEntry(
        outcome.status,
        outcome.message,
        tuple(verdict.accepted) if verdict is not None else (),
        verdict.bonus if verdict is not None else 0,
        tuple(outcome.logprobs),
        outcome.held_len,
        outcome.features.start,
        outcome.features.data,
        tuple(token for ids in outcome.top_k for token in ids),
        outcome.finished,
    )
