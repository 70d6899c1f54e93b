"""Run the main loop of a session: draft, merge, verify, commit, deliver.

If the verifier does not answer, the step is repeated; services then resynchronise (docs/protocol.md). If the
verifier stays unavailable, is replaced, or serves another gateway, the loop ends with that error, and other
sessions continue its requests. After an internal fault, the step is repeated request by request, and only the
request that causes the fault ends.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from gateway.events import Count, Events, TraceOfStep
from gateway.session.constraints import Constraints
from gateway.session.persist import Persistence
from gateway.session.releases import Releases
from gateway.session.token_stream import TokenStream
from gateway.session.verifier import Verdicts, VerifierClient
from gateway.store.records import Record
from specinfer.engine.step import Committed, StepMachine, StepPlan, Verified
from specinfer.errors import FencedError, ServiceChangedError, UnavailableError
from specinfer.planning.choice import PLAIN
from specinfer.planning.feedback import FinishedStep
from specinfer.planning.step_report import StepPlanner
from specinfer.remote.pool import SpeculatorPool
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.scheduler import Scheduler
from specinfer.service.outage import Outage
from specinfer.system.log_lines import LogPace
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)
_BACKOFF_S = 0.1
_DEFERRED_PAUSE_S = 0.01
"""Seconds to wait after a step with only EXHAUSTED verdicts."""


class SessionLoop:
    """Decodes the requests of its scheduler with one verifier."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: SpeculatorPool,
        verifier: VerifierClient,
        events: Events,
        planner: StepPlanner,
        persistence: Callable[[Callable[[FinishedStep], None], Callable[[list[str]], None]], Persistence],
        constraints: Constraints,
        verifier_patience_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """Create a loop; `run` fails after `verifier_patience_seconds` without the verifier.

        `persistence(learn, release)` creates the queue that stores and publishes tokens. `clock` returns monotonic
        seconds.
        """
        self.scheduler, self.pool, self.verifier = scheduler, pool, verifier
        self._constraints = constraints
        self._events, self._pace = events, LogPace()
        self._clock = clock
        self.machine = StepMachine(scheduler, planner, self._unchosen, clock)
        self._patience_s = verifier_patience_seconds
        self._wake = asyncio.Event()
        self._releases = Releases(verifier, pool)
        self.persistence = persistence(self._learn, self._releases.begin)
        self._unreleased: list[str] = []
        """Preempted requests that are not released at the verifier yet."""
        self._outage = Outage("the verifier")
        self.steps = 0

    @property
    def verifier_ready(self) -> bool:
        """True if the last call to the verifier succeeded."""
        return self._outage.since is None

    def submit(self, record: Record, token_stream: TokenStream) -> RequestState:
        """Queue a recorded request, to continue after the tokens of its stream.

        Raises the errors of `Scheduler.submit`.
        """
        state = self.scheduler.submit(
            record.request,
            self._clock(),
            self.pool.draws,
            generated=token_stream.tokens,
            drawn_for=record.drawn_for,
            arrived_ago_s=record.age_s,
            adoption=record.adoption,
        )
        self.persistence.open(state, token_stream)
        self._interrupt()
        return state

    def cancel(self, request_id: str) -> None:
        """End a request at the start of the next step."""
        self.scheduler.cancel(request_id)
        self._interrupt()

    def _interrupt(self) -> None:
        """Wake the loop, and end a grant, to plan the next step."""
        self._wake.set()
        if self.verifier.granted:
            self._releases.begin([])

    async def run(self) -> None:
        """Run steps until cancelled, or until this verifier fails permanently."""
        delivering = asyncio.create_task(self.persistence.run())
        iterating = asyncio.create_task(self._run())
        try:
            await asyncio.wait([delivering, iterating], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (delivering, iterating):
                task.cancel()
            results = await asyncio.gather(delivering, iterating, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _run(self) -> None:
        while True:
            step = await self._next_step()
            try:
                await self._iterate(step)
            except (FencedError, ServiceChangedError):
                raise
            except UnavailableError as error:
                await self._wait_for_verifier(error)
            except Exception:  # an internal fault must not end all requests
                log.exception("a step failed; repeating its %d requests one by one", len(step.entries))
                self._events.add(Count.FAILED_STEPS)
                await self._serve_one_by_one(step)

    async def _serve_one_by_one(self, step: StepPlan) -> None:
        """Repeat a step request by request, without drafts.

        Faults in drafts and trees do not recur then. A request that fails alone ends.
        """
        for entry in step.entries:
            if entry.state.finish is not None:
                continue
            try:
                await self._iterate(StepPlan(PLAIN, [entry.without_tree()], []))
            except (FencedError, ServiceChangedError):
                raise
            except UnavailableError as error:
                return await self._wait_for_verifier(error)
            except Exception as error:  # noqa: BLE001  # any fault ends only this request
                await self._fail(entry.state, error)
        return None

    async def _fail(self, state: RequestState, error: Exception) -> None:
        reason = self._events.report_fault(state.request.request_id, error)
        await self.persistence.put(self.scheduler.fail([state], reason, self._clock(), retryable=False))

    async def _next_step(self) -> StepPlan:
        """Wait until a step can be planned, and return its plan."""
        while True:
            self._wake.clear()
            await self.persistence.put(self.scheduler.reap(self._clock()))
            try:
                step = self.machine.plan(self._clock(), self.pool)
            except Exception as error:  # noqa: BLE001  # any fault ends only the requests that cause it
                await self._fail_unplannable(error)
                continue
            self._events.requests_admitted(step.admitted)
            if step.entries:
                return step
            await self._wake.wait()

    async def _fail_unplannable(self, error: Exception) -> None:
        """End the requests that make planning fail."""
        culprits = self.scheduler.unplannable()
        if not culprits:
            raise error
        for state, fault in culprits:
            await self._fail(state, fault)

    async def _iterate(self, plan: StepPlan) -> None:
        await self._release_preempted()
        with self._events.trace_step(plan.entries) as trace:
            committed = await self._decode(plan, trace)
            for step, progress in committed:
                await self.persistence.put(
                    progress, step
                )  # before the trace, whose faults must not lose tokens
            if trace is not None:
                trace.end(committed[0].step)
        if all(verdict.status is EntryStatus.EXHAUSTED for verdict in committed[0].step.verdicts.values()):
            await asyncio.sleep(_DEFERRED_PAUSE_S)
            self.machine.paused()

    async def _decode(self, plan: StepPlan, trace: TraceOfStep | None) -> list[Committed]:
        """Run a step: ask speculators for drafts and the verifier for verdicts."""
        traceparent = trace.traceparent if trace is not None else ""
        running = self.machine.begin(plan)
        drafts, times = await self.pool.draft(plan.entries, plan.choice.speculators, traceparent)
        if drafts:
            self._constraints.match([entry.state for entry in plan.entries])
        committed = running.commit(await self._verified(plan, running.merge(drafts, times), traceparent))
        self.steps += len(committed)
        return committed

    async def _verified(
        self, plan: StepPlan, trees: Mapping[str, TokenTree], traceparent: str
    ) -> list[Verified]:
        """Return verdicts of a step, and of its grant's further steps."""
        entries = plan.entries
        wanted = self.pool.wanted(entries)
        order = self.pool.order(entries, plan.choice, bool(trees), wanted, not traceparent)
        answers = await self.verifier.verify(entries, trees, traceparent, wanted, order)
        self._outage.over(self._clock())
        self.pool.keep(wanted, answers[0].trees, answers[0].by_request)
        return [self._of_host(answer) for answer in answers]

    def _of_host(self, answer: Verdicts) -> Verified:
        verified = Verified(answer.trees, answer.by_request, answer.compute_s, answer.compute_s)
        if self.pool.resident is None or answer.drafts is None:
            return verified
        drafted, nodes = self.pool.resident.note(answer.drafts)
        draft_s = answer.drafts.microseconds / 1e6
        return verified._replace(
            host_s=answer.compute_s + draft_s, draft_s=draft_s, draft_times=[drafted], proposed=nodes
        )

    async def _release_preempted(self) -> None:
        """Release preempted requests at the verifier.

        The next step needs their cache blocks, so a failed call is repeated before it. Speculators keep their
        caches.
        """
        preempted = self.scheduler.take_preempted()
        if preempted:
            reason = (
                "%d requests are preempted and wait: the KV cache is full, or another caller had none running"
            )
            log.info(reason, len(preempted))
            self._events.add(Count.PREEMPTIONS, len(preempted))
            self._unreleased += preempted
        if self._unreleased:
            await self.verifier.release(self._unreleased)
            self._unreleased = []

    async def close(self) -> None:
        """Stop pending releases and the verifier's stream; call after `run`."""
        await self._releases.close()
        self.verifier.close()
        self.machine.planner.close()

    def _learn(self, step: FinishedStep) -> None:
        self._events.step_finished(step, self.pool)
        self.machine.learn(step)

    def _unchosen(self, error: Exception) -> None:
        """Log a planner's exception; the step decodes plainly."""
        if self._pace.due(self._clock()):
            log.error("the planner raised an exception, this step decodes without drafts", exc_info=error)
        self._events.add(Count.FAILED_STEPS)

    async def _wait_for_verifier(self, error: UnavailableError) -> None:
        """Sleep `_BACKOFF_S` before the step is repeated."""
        self._events.add(Count.VERIFIER_FAILURES)
        if self._outage.failed(error, self._clock()) > self._patience_s:
            raise error
        await asyncio.sleep(_BACKOFF_S)
