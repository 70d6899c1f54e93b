"""Core of a gateway without Redis and clients, with the steps of `gateway.session.loop`."""

import asyncio
import itertools
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from gateway.session.verifier import VerifierClient, pass_curve
from specinfer.errors import SpecInferError
from specinfer.planning.calibration import Calibration
from specinfer.planning.feedback import FinishedStep, StepTimes, learn
from specinfer.planning.table_planner import TablePlanner
from specinfer.planning.trees import trees_to_verify
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.pool import SpeculatorPool
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.limits import NodeBudget
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.scheduler import Scheduler, SchedulerLimits
from specinfer.scheduling.text import StopStrings
from tests.fuzz.services import FINGERPRINT, Services
from tests.fuzz.transport import InlineChannel, Tamper
from tests.support.system import VOCABULARY

_BUDGET = NodeBudget(8, 32, 1 << 12)


def untouched(message: Any) -> Any:
    return message


class GatewayCore:
    """Parts of a gateway that read answers of services."""

    def __init__(
        self,
        services: Services,
        speculators: Sequence[int],
        drafts: Tamper,
        verdicts: Tamper,
        adaptive: bool,
        described: Tamper = untouched,
        stops: StopStrings | None = None,
    ) -> None:
        """Connect the verifier and the speculator services with these indices.

        `drafts`, `verdicts` and `described` may change drafts, verdicts and descriptions of speculator services.
        """
        policy = PoolPolicy(VOCABULARY, FINGERPRINT, deadline_s=60.0)
        channels: dict[str, Any] = {
            f"speculator {i}": InlineChannel(services.speculators[i], drafts, described) for i in speculators
        }
        self.pool = SpeculatorPool(list(channels), channels.__getitem__, policy)
        self.client = policy.client
        channel: Any = InlineChannel(services.verifier, verdicts)
        self._verifier = VerifierClient(channel)
        self._adaptive, self._clock = adaptive, itertools.count()
        self._ended: list[str] = []
        """Ended requests, not released at the services yet."""
        limits = SchedulerLimits(
            max_batch=4,
            tree_depth=5,
            sequence_length=4,
            max_tree_nodes=63,
            prefill_chunk=24,
            max_context_len=512,
        )
        self.scheduler, self.calibration = Scheduler(limits, _BUDGET, stops), Calibration()

    async def open(self) -> None:
        """Describe the services, and start the planner."""
        asyncio.get_running_loop().set_task_factory(self._watched)
        self._failed: list[BaseException] = []
        self._planner = TablePlanner(pass_curve(await self._verifier.describe()), _BUDGET, self._adaptive)
        await self.pool.connect()
        self._planner.enrol(self.pool.groups)

    async def close(self) -> None:
        """Release ended requests, and end background tasks."""
        await self._release()
        await self.pool.close()
        asyncio.get_running_loop().set_task_factory(None)

    def submit(self, request: GenerationRequest) -> RequestState:
        return self.scheduler.submit(request, float(next(self._clock)), self.pool.draws)

    async def step(self) -> list[Progress]:
        """Run one step; return no progress if the verifier's whole answer is refused."""
        now = float(next(self._clock))
        running, wanting = self.scheduler.admit(now)
        choice = self._planner.choose(running, wanting)
        entries = self.scheduler.plan(now, choice.nodes, choice.worth)
        if not entries:
            return []
        started = time.perf_counter()
        drafts, draft_times = await self.pool.draft(entries, choice.speculators)
        self._raise_failures()
        drafted = time.perf_counter()
        trees = trees_to_verify(entries, drafts, self.calibration, choice.keeps)
        merged = time.perf_counter()
        try:
            answers = await self._verifier.verify(entries, trees)
        except SpecInferError:
            return []
        verified = time.perf_counter()
        trees, verdicts = answers[0].trees, answers[0].by_request
        progress = self.scheduler.commit(entries, trees, verdicts, now)
        times = StepTimes(started, started, drafted, merged, verified, time.perf_counter())
        step = FinishedStep(
            choice, entries, drafts, trees, verdicts, draft_times, answers[0].compute_s, times
        )
        learn(step, self._planner, self.calibration)
        self._ended += [item.state.request.request_id for item in progress if item.final]
        await self._release()
        return progress

    async def _release(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            await self._verifier.release(ended)
            await self.pool.release(ended)

    def _watched(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> Any:
        task = asyncio.Task(work, loop=loop, **options)
        task.add_done_callback(self._note)
        return task

    def _note(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.append(error)

    def _raise_failures(self) -> None:
        """Raise the exception of a background task that failed."""
        if self._failed:
            raise self._failed.pop()
