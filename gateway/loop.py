"""The main loop: draft, merge, verify, commit, deliver; once per iteration for the whole batch.

An iteration that the verifier does not answer is repeated (the services resynchronise by themselves, see
docs/protocol.md); only when it stays away do its requests end with an error. One that fails by a fault of
ours is repeated request by request, so that only the culprit ends.
"""

import asyncio
import logging
import time
from typing import NamedTuple

from gateway.clients.outage import Outage
from gateway.clients.speculator_pool import SpeculatorPool
from gateway.clients.verifier import VerifierClient
from gateway.delivery import Deliveries
from gateway.metrics import GatewayMetrics
from gateway.planning.calibration import Calibration
from gateway.planning.feedback import FinishedStep, StepTimes, learn
from gateway.planning.node_threshold import NO_NODES, NodeThreshold
from gateway.planning.planner import PLAIN, Choice, Planner
from gateway.planning.trees import trees_to_verify
from gateway.requests.request import GenerationRequest
from gateway.requests.scheduler import Scheduler
from gateway.requests.step import StepEntry
from gateway.requests.store import RequestStore
from gateway.requests.subscribers import Update
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_BACKOFF_S = 0.1


class Step(NamedTuple):
    """What is to be done in one iteration."""

    choice: Choice
    threshold: NodeThreshold
    entries: list[StepEntry]


class GenerationLoop:
    """Owns the scheduler and drives every request to its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: SpeculatorPool,
        verifier: VerifierClient,
        store: RequestStore,
        tokenizer: Tokenizer,
        metrics: GatewayMetrics,
        planner: Planner,
        verifier_patience_s: float = 30.0,
    ) -> None:
        self.scheduler, self.pool, self._verifier, self._store = scheduler, pool, verifier, store
        self._metrics, self._planner, self._calibration = metrics, planner, Calibration()
        self._patience_s = verifier_patience_s
        self._wake = asyncio.Event()
        self.deliveries = Deliveries(scheduler, store, tokenizer, metrics, self._learn, self._release)
        self._background: set[asyncio.Task[None]] = set()
        self._outage = Outage()
        self._last_done = 0.0
        """When the last step ended; 0 after a pause."""
        self.steps = 0
        self.choice = PLAIN
        """Of the latest step."""

    @property
    def verifier_ready(self) -> bool:
        """Whether the last call to the verifier succeeded."""
        return self._outage.since is None

    async def submit(self, request: GenerationRequest) -> "asyncio.Queue[Update]":
        """Records and queues a request; returns the queue of its updates."""
        await self._store.create(request)
        try:
            self.scheduler.submit(request, time.monotonic(), self.pool.draws)
        except SpecInferError:
            await self._store.discard(request.request_id)
            raise
        # nothing is awaited from here on: the loop must find the listener in place
        self._wake.set()
        return self.deliveries.open(request)

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next iteration."""
        self.scheduler.cancel(request_id)
        self._wake.set()

    async def run(self) -> None:
        """Iterates until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.deliveries.run())
            tasks.create_task(self._run())

    async def _run(self) -> None:
        while True:
            step = await self._next_step()
            try:
                await self._iterate(step)
            except UnavailableError as error:
                await self._bear_with_verifier(step, error)
            except Exception:  # a fault of ours must not end everybody's requests
                log.exception("a step of %d requests failed; serving them one by one", len(step.entries))
                self._metrics.failed_steps.inc()
                await self._serve_one_by_one(step)

    async def _serve_one_by_one(self, step: Step) -> None:
        """Plain decoding, so that a fault in drafts or trees is avoided, too; who fails alone ends."""
        for entry in step.entries:
            if entry.state.finish is not None:
                continue
            try:
                await self._iterate(Step(PLAIN, NO_NODES, [entry]))
            except UnavailableError as error:
                return await self._bear_with_verifier(step, error)
            except Exception as error:
                log.exception("request %s failed", entry.request_id)
                message = f"internal error: {type(error).__name__}"
                ended = self.scheduler.fail([entry.state], message, time.monotonic(), retryable=False)
                await self.deliveries.put(ended)
        return None

    async def _next_step(self) -> Step:
        """Waits until there is something to do, and plans it."""
        while True:
            self._wake.clear()
            await self.deliveries.put(self.scheduler.reap(time.monotonic()))
            self._planner.enrol(self.pool.groups)
            running, wanting = self.scheduler.admit(time.monotonic())
            choice = self._planner.choose(running, wanting)
            threshold = self._planner.threshold(running, choice)
            entries = self.scheduler.plan(time.monotonic(), choice.nodes, threshold.least_reach)
            self._metrics.observe_queue(self.scheduler.waiting, self.scheduler.running)
            if entries:
                self.choice = choice
                return Step(choice, threshold, entries)
            await self._wake.wait()
            self._last_done = 0.0

    async def _iterate(self, step: Step) -> None:
        await self._release_preempted()
        entries = step.entries
        started = time.perf_counter()
        drafts, draft_times = await self.pool.draft(entries, step.choice.speculators)
        drafted = time.perf_counter()
        trees = trees_to_verify(entries, drafts, self._calibration, step.threshold)
        merged = time.perf_counter()
        verdicts, pass_s = await self._verifier.verify(entries, trees)
        verified = time.perf_counter()
        self._outage.over(time.monotonic())
        progress = self.scheduler.commit(entries, trees, verdicts, time.monotonic())
        self.steps += 1
        done = time.perf_counter()
        times = StepTimes(self._last_done or started, started, drafted, merged, verified, done)
        self._last_done = done
        finished = FinishedStep(step.choice, entries, drafts, trees, verdicts, draft_times, pass_s, times)
        await self.deliveries.put(progress, finished)

    async def _release_preempted(self) -> None:
        """Their blocks are needed in this very step, so this is waited for; speculators keep theirs."""
        preempted = self.scheduler.take_preempted()
        if preempted:
            log.info("preempting %d requests", len(preempted))
            self._metrics.preemptions.inc(len(preempted))
            await self._verifier.release(preempted)

    def _learn(self, step: FinishedStep) -> None:
        learn(step, self._planner, self._calibration)

    def _release(self, request_ids: list[str]) -> None:
        """Lets the services forget finished requests, without waiting for them."""
        task = asyncio.get_running_loop().create_task(self._release_everywhere(request_ids))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release_everywhere(self, request_ids: list[str]) -> None:
        try:
            await self._verifier.release(request_ids)
        except UnavailableError as error:
            log.warning("could not release %d requests: %s", len(request_ids), error)
        await self.pool.release(request_ids)

    async def _bear_with_verifier(self, step: Step, error: UnavailableError) -> None:
        """Waits a little for the verifier; after its patience the step's requests end with an error."""
        now = time.monotonic()
        self._metrics.verifier_failures.inc()
        if self._outage.failed(error, now) > self._patience_s:
            states = [entry.state for entry in step.entries]
            await self.deliveries.put(self.scheduler.fail(states, str(error), now))
        await asyncio.sleep(_BACKOFF_S)
