"""The speculators: their services are asked in parallel, with a deadline, never waited for beyond it.

Speculators are numbered in the order in which their services are first reached, and keep their numbers.
A late service keeps working on its message and is left out of the iterations until it is done; a failed
one is left out until it answers again. Malformed trees are dropped and counted.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from gateway.clients.speculator import Asked, SpeculatorService
from gateway.planning.latency import DraftTime, SpeculatorSet
from gateway.requests.step import StepEntry
from specinfer.errors import IncompatibleError, UnavailableError
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc

log = logging.getLogger(__name__)

_RETRY_DESCRIBE_S = 0.5
_LONGEST_RETRY_S = 30.0
_USUAL_DELTA = 16
"""Context tokens up to which an answer tells what drafts take; with more, a service reads what it missed."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How the pool treats its services."""

    deadline_s: float
    vocab_size: int
    tokenizer_fingerprint: str
    """The verifier's; a service with another one is refused."""
    hung_s: float = 10.0
    """Silence after which a service is taken for dead."""


class Drafts(NamedTuple):
    """What the speculators answered in time."""

    trees: dict[str, list[tuple[int, TokenTree]]]
    """By request, (speculator, tree) in pool order."""
    times: list[DraftTime]
    """Of every service that answered and had no more to read than usual."""


class SpeculatorPool:
    """All speculators of a gateway, in the order in which sequence speculation prefers them."""

    def __init__(self, channels: Sequence[tuple[str, grpc.aio.Channel]], policy: PoolPolicy) -> None:
        self._policy = policy
        self.services = [_service(address, channel) for address, channel in channels]
        self.names: list[str] = []
        """Of the speculators of all services that were ever reached, by number."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._steps = 0

    async def connect(self) -> None:
        """Describes every service that can be reached and keeps trying the others in the background.

        Raises:
            IncompatibleError: if one has another tokenizer.
        """
        for service in self.services:
            try:
                await self._describe(service)
            except UnavailableError as error:
                log.warning("going on without %s for now: %s", service.address, error)
                self._spawn(self._keep_describing(service))

    @property
    def groups(self) -> list[SpeculatorSet]:
        """The speculators, by service."""
        return [frozenset(service.members) for service in self.services if service.members]

    @property
    def draws(self) -> bool:
        """Whether any speculator draws for requests that are sampled."""
        return any(service.drawing for service in self.services)

    async def draft(self, entries: Sequence[StepEntry], chosen: SpeculatorSet) -> Drafts:
        """Trees of the chosen speculators that meet the deadline.

        A step in which anybody draws has no deadline: how long a draft takes depends on the tokens drawn, so
        to drop the late ones would select by token, and bias the output. Whoever is silent for `hung_s` is
        taken for dead.
        """
        self._steps += 1
        trees: dict[str, list[tuple[int, TokenTree]]] = {}
        times: list[DraftTime] = []
        questions = [
            (service, asked)
            # whoever takes longest is asked first
            for service in sorted(self.services, key=lambda s: -s.last_seconds)
            if (asked := service.asked(entries, chosen)) and _available(service)
        ]
        drawn = any(service.will_draw(asked.values()) for service, asked in questions)
        running = [self._spawn(self._ask(service, asked, trees, times)) for service, asked in questions]
        if running:
            await asyncio.wait(running, timeout=None if drawn else self._policy.deadline_s)
        late = [task for task in running if not task.done()]
        if late:
            log.debug("%d services missed the deadline", len(late))
        # what arrives from now on concerns an older step: hand out copies
        in_order = {name: sorted(found, key=lambda item: item[0]) for name, found in trees.items()}
        return Drafts(in_order, list(times))

    async def release(self, request_ids: Sequence[str]) -> None:
        """Lets all services forget requests; their time-to-live covers lost calls."""
        for service in self.services:
            service.forget(request_ids)
        await asyncio.gather(*(_release(s, request_ids) for s in self.services if s.description))

    async def close(self) -> None:
        """Ends background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(
        self,
        service: SpeculatorService,
        asked: Mapping[str, Asked],
        trees: dict[str, list[tuple[int, TokenTree]]],
        times: list[DraftTime],
    ) -> None:
        """One exchange with one service; adds its trees, and its time, when they arrive."""
        started, step = time.perf_counter(), self._steps
        entries = [service.encode(item) for item in asked.values()]
        service.busy = True
        try:
            request = speculator_pb2.DraftRequest(step_id=step, entries=entries)
            reply = await service.stream.exchange(request, self._policy.hung_s)
        except UnavailableError as error:
            log.warning("%s", error)
            service.counters.missed += 1
            service.description = None
            service.losses += 1
            self._spawn(self._keep_describing(service))
            return
        finally:
            service.busy = False
        service.losses = 0
        in_time = step == self._steps
        service.counters.answered += in_time
        service.counters.missed += not in_time
        for result in reply.entries:
            found = service.accept(asked, result, self._policy.vocab_size)
            if found and in_time:
                trees.setdefault(result.request_id, []).extend(found)
        service.last_seconds = time.perf_counter() - started
        if max(len(entry.delta_token_ids) for entry in entries) <= _USUAL_DELTA:
            times.append(service.draft_time(reply))

    async def _describe(self, service: SpeculatorService) -> None:
        try:
            description = await service.stub.Describe(speculator_pb2.DescribeSpeculatorRequest(), timeout=5.0)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"{service.address}: {error.details()}") from error
        theirs, ours = description.tokenizer_fingerprint, self._policy.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise IncompatibleError(
                f"the speculators at {service.address} have tokenizer {theirs}, the verifier has {ours}"
            )
        for each in description.speculators:
            if each.draws and each.vocab_size > self._policy.vocab_size:
                # its draws of the tokens that the target lacks would be dropped, which selects by token
                raise IncompatibleError(
                    f"speculator {each.name} at {service.address} draws from {each.vocab_size} tokens, "
                    f"the target has {self._policy.vocab_size}"
                )
        self._enrol(service, [speculator.name for speculator in description.speculators])
        drawing = [s for s, it in zip(service.members, description.speculators, strict=True) if it.draws]
        service.drawing = frozenset(drawing)
        service.held.clear()
        service.description = description
        for speculator in description.speculators:
            log.info(
                "speculator %s (%s) at %s is ready", speculator.name, speculator.drafter, service.address
            )

    def _enrol(self, service: SpeculatorService, names: Sequence[str]) -> None:
        """Numbers the speculators of a service that was reached for the first time."""
        if not service.members:
            service.members = range(len(self.names), len(self.names) + len(names))
            self.names += names
        known = [self.names[speculator] for speculator in service.members]
        if list(names) != known:
            raise IncompatibleError(f"{service.address} came back with speculators {names}, not {known}")

    async def _keep_describing(self, service: SpeculatorService) -> None:
        """Tries again and again; a service that was lost several times in a row is left alone for longer."""
        while service.description is None:
            await asyncio.sleep(min(_RETRY_DESCRIBE_S * 2**service.losses, _LONGEST_RETRY_S))
            try:
                await self._describe(service)
            except UnavailableError:
                continue  # still away; _available counts what it misses
            except IncompatibleError as error:
                log.error("%s; it stays out", error)
                return

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _service(address: str, channel: grpc.aio.Channel) -> SpeculatorService:
    stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
    return SpeculatorService(address, stub, MessageStream(address, lambda: stub.Draft()))


def _available(service: SpeculatorService) -> bool:
    if service.description is None or service.busy:
        service.counters.missed += 1
        return False
    return True


async def _release(service: SpeculatorService, request_ids: Sequence[str]) -> None:
    try:
        await service.stub.Release(common_pb2.ReleaseRequest(request_ids=request_ids), timeout=5.0)
    except grpc.aio.AioRpcError as error:
        log.warning("%s could not release: %s", service.address, error.details())
