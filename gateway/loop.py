"""The main loop: draft, merge, verify, commit, store, publish; once per iteration for the whole batch.

An iteration that fails is repeated (the services resynchronise by themselves, see docs/protocol.md);
only when the verifier stays away do its requests end with an error.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from gateway.clients.outage import Outage
from gateway.clients.speculator_pool import SpeculatorPool
from gateway.clients.verifier import VerifierClient
from gateway.metrics import GatewayMetrics
from gateway.planning.calibration import Calibration
from gateway.planning.feedback import Drafts, FinishedStep, StepTimes, learn
from gateway.planning.node_threshold import NOTHING
from gateway.planning.planner import PLAIN, Planner
from gateway.requests.request import GenerationRequest, RequestState, Speculation
from gateway.requests.scheduler import Progress, Scheduler, StepEntry
from gateway.requests.store import RequestStore
from gateway.requests.subscribers import Subscribers, Update
from gateway.requests.text import TextStream
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.tokenizer import Tokenizer
from specinfer.tree import TokenTree, cut_trees, merge_trees

log = logging.getLogger(__name__)
_BACKOFF_S = 0.1
_MOST_DELIVERIES = 64
"""Steps that may wait for the store before the loop waits too."""


class _Aftermath(NamedTuple):
    """What is left to do of a step while the next one runs."""

    progress: list[tuple[Progress, str | None]]
    """With its text, or None where that can be found later."""
    step: FinishedStep | None
    """To learn from; None if requests ended between steps."""


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
        self._tokenizer, self._metrics, self._patience_s = tokenizer, metrics, verifier_patience_s
        self._planner, self._calibration = planner, Calibration()
        self._choice, self._worth = PLAIN, NOTHING
        self.subscribers = Subscribers()
        self._texts: dict[str, TextStream] = {}
        self._wake = asyncio.Event()
        self._aftermath: asyncio.Queue[_Aftermath] = asyncio.Queue(_MOST_DELIVERIES)
        self._background: set[asyncio.Task[None]] = set()
        self._outage = Outage()
        self._last_done = 0.0
        """When the last step ended; 0 after a pause."""
        self.steps = 0
        self.new_tokens = 0

    @property
    def verifier_ready(self) -> bool:
        """Whether the last call to the verifier succeeded."""
        return self._outage.since is None

    async def submit(self, request: GenerationRequest) -> "asyncio.Queue[Update]":
        """Records and queues a request; returns the queue of its updates."""
        request_id = request.request_id
        await self._store.create(request)
        try:
            self.scheduler.submit(request, time.monotonic(), self.pool.draws)
        except SpecInferError:
            await self._store.discard(request_id)
            raise
        # nothing is awaited from here on: the loop must find the listener in place
        self._texts[request_id] = TextStream(self._tokenizer, request.stop_strings)
        self._wake.set()
        return self.subscribers.subscribe(request_id)

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next iteration."""
        self.scheduler.cancel(request_id)
        self._wake.set()

    async def run(self) -> None:
        """Iterates until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._conclude_steps())
            tasks.create_task(self._run())

    async def _run(self) -> None:
        while True:
            entries = await self._next_step()
            try:
                await self._iterate(entries)
            except UnavailableError as error:
                await self._bear_with_verifier(entries, error)

    async def _next_step(self) -> list[StepEntry]:
        """Waits until there is something to do."""
        while True:
            self._wake.clear()
            await self._deliver(self.scheduler.reap(time.monotonic()))
            self._planner.enrol(self.pool.groups)
            running, wanting = self.scheduler.admit(time.monotonic())
            self._choice = self._planner.choose(running, wanting)
            speculating = bool(self._choice.speculators)
            self._worth = self._planner.worth(running, self._choice) if speculating else NOTHING
            entries = self.scheduler.plan(time.monotonic(), self._choice.nodes, self._worth.least_reach)
            self._metrics.observe_queue(self.scheduler.waiting, self.scheduler.running)
            if entries:
                return entries
            await self._wake.wait()
            self._last_done = 0.0

    async def _iterate(self, entries: list[StepEntry]) -> None:
        await self._release_preempted()
        started = time.perf_counter()
        drafts, draft_times = await self.pool.draft(entries, self._choice.speculators)
        drafted = time.perf_counter()
        trees = self._merge(entries, drafts)
        merged = time.perf_counter()
        verdicts, pass_s = await self._verifier.verify(entries, trees)
        verified = time.perf_counter()
        self._outage.over(time.monotonic())
        progress = self.scheduler.commit(entries, trees, verdicts, time.monotonic())
        self.steps += 1
        done = time.perf_counter()
        times = StepTimes(self._last_done or started, started, drafted, merged, verified, done)
        self._last_done = done
        step = FinishedStep(self._choice, entries, drafts, trees, verdicts, draft_times, pass_s, times)
        await self._deliver(progress, step)

    def _merge(self, entries: Sequence[StepEntry], drafts: Drafts) -> dict[str, TokenTree]:
        """The trees to verify: corrected, merged, and cut over the whole batch; or only roots.

        Sequence speculation takes the chain of the first speculator that drafted one, whole.
        """
        final = [entry for entry in entries if entry.final]
        trees = {e.request_id: TokenTree.root_only(e.delta[-1]) for e in final}
        open_to_cut = []
        for entry in final:
            found = drafts.get(entry.request_id, ())
            if entry.state.request.speculation is Speculation.SEQUENCE:
                found = found[:1]
            elif found:
                open_to_cut.append(entry)
            if found:
                corrected = [(index, self._calibration.correct(index, tree)) for index, tree in found]
                trees[entry.request_id] = merge_trees(corrected)
        if not open_to_cut:
            return trees
        names = [entry.request_id for entry in open_to_cut]
        limits = [entry.limits.nodes + 1 for entry in open_to_cut]
        cut = cut_trees([trees[name] for name in names], limits, self._calibration.beliefs(), self._worth)
        return trees | dict(zip(names, cut, strict=True))

    async def _release_preempted(self) -> None:
        """Their blocks are needed in this very step, so this is waited for; speculators keep theirs."""
        preempted = self.scheduler.take_preempted()
        if preempted:
            log.info("preempting %d requests", len(preempted))
            self._metrics.preemptions.inc(len(preempted))
            await self._verifier.release(preempted)

    async def _deliver(self, progress: Sequence[Progress], step: FinishedStep | None = None) -> None:
        """Hands on what a step brought; waits only if the store is far behind.

        A stop string ends a request, which the next plan must know: where there are any, text comes first.
        """
        found = [(item, self._text(item) if item.state.request.stop_strings else None) for item in progress]
        if found or step:
            await self._aftermath.put(_Aftermath(found, step))

    async def _conclude_steps(self) -> None:
        """Learns from steps, stores and publishes what they brought: all beside the next step."""
        while True:
            waiting = [await self._aftermath.get()]
            await asyncio.sleep(0)  # the drafts of the next step are asked for first
            while not self._aftermath.empty():
                waiting.append(self._aftermath.get_nowait())
            for _, step in waiting:
                if step is not None:
                    self._metrics.observe_step(step.times)
                    learn(step, self._planner, self._calibration)
            delivery = [
                (item, self._text(item) if text is None else text)
                for progress, _ in waiting
                for item, text in progress
            ]
            if delivery:
                await self._store_and_publish(delivery)

    async def _store_and_publish(self, delivery: list[tuple[Progress, str]]) -> None:
        """A token is durable before a client sees it."""
        try:
            await self._store.append([item for item, _ in delivery])
        except UnavailableError as error:
            log.error("%s; ending %d requests", error, len(delivery))
            lost = {item.state.request.request_id: item.state for item, _ in delivery}
            open_states = [state for state in lost.values() if state.finish is None]
            ended = self.scheduler.fail(open_states, str(error), time.monotonic())
            delivery += [(item, "") for item in ended]
        for item, text in delivery:
            self._publish(item, text)
        self._release([item.state for item, _ in delivery if item.final])

    def _text(self, item: Progress) -> str:
        stream = self._texts.get(item.state.request.request_id)
        if stream is None:
            return ""
        piece = stream.push(item.tokens, last=item.final)
        if piece.stopped:
            self.scheduler.cut(item, piece.used, time.monotonic())
        return piece.text

    def _publish(self, item: Progress, text: str) -> None:
        state = item.state
        self.new_tokens += len(item.tokens)
        final = state if item.final else None
        self._metrics.observe_progress(item, self.pool.names)
        if item.tokens or text or final:
            update = Update(item.tokens, text, item.logprobs, final)
            self.subscribers.publish(state.request.request_id, update)

    def _release(self, states: Sequence[RequestState]) -> None:
        """Lets the services forget finished requests, without waiting for them."""
        if not states:
            return
        ids = [state.request.request_id for state in states]
        for request_id in ids:
            self._texts.pop(request_id, None)
        task = asyncio.get_running_loop().create_task(self._release_everywhere(ids))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release_everywhere(self, request_ids: list[str]) -> None:
        try:
            await self._verifier.release(request_ids)
        except UnavailableError as error:
            log.warning("could not release %d requests: %s", len(request_ids), error)
        await self.pool.release(request_ids)

    async def _bear_with_verifier(self, entries: Sequence[StepEntry], error: UnavailableError) -> None:
        """Waits a little for the verifier; after its patience the step's requests end with an error."""
        now = time.monotonic()
        self._metrics.verifier_failures.inc()
        if self._outage.failed(error, now) > self._patience_s:
            await self._deliver(self.scheduler.fail([e.state for e in entries], str(error), now))
        await asyncio.sleep(_BACKOFF_S)
