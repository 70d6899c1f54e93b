"""Asks several speculator services at once, with a deadline, for an engine that is not our gateway.

A late service goes on with its message and is left out until it is done; one that fails or is replaced is
left out until it was described again. So a service costs at most one deadline at a time, never an error.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from specinfer.errors import IncompatibleError, ServiceChangedError, UnavailableError
from specinfer.service.stream import MessageStream
from specinfer.speculators.drafts import (
    CALL_S,
    describe_speculators,
    describe_together,
    exchange_drafts,
    speculator_keys,
)
from specinfer.speculators.engine_service import Drafts, Question, SpeculatorService
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What speculators must fit."""

    vocab_size: int
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class Patience:
    """How services are treated that say nothing."""

    hung_s: float = 10.0
    """Silence after which a service is taken for dead."""
    retry_s: float = 1.0
    """Between attempts to describe a service that is away."""


@dataclass(slots=True)
class Pool:
    """The speculator services of one engine. Lives on one event loop."""

    target: Target
    services: list[SpeculatorService]
    patience: Patience = Patience()
    client: str = field(default_factory=lambda: secrets.token_hex(8))
    """Who asks: services keep the requests of different clients apart."""
    _numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """By address, name, and place among those of this name: what is learnt by number survives a restart."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _rounds: int = 0

    @classmethod
    def of(cls, addresses: Sequence[str], target: Target, open_channel: Callable[[str], Any]) -> "Pool":
        """The pool of the services at these addresses."""
        return cls(target, [_service(address, open_channel(address)) for address in addresses])

    async def connect(self) -> None:
        """Describes every service that can be reached, and keeps trying the others.

        Raises:
            IncompatibleError: if one has another tokenizer.
        """
        places = [(service.address, service.stub) for service in self.services]
        for service, answer in zip(self.services, await describe_together(places, CALL_S), strict=True):
            if isinstance(answer, UnavailableError):
                log.warning("going on without %s for now: %s", service.address, answer)
                self._spawn(self._keep_describing(service))
            else:
                self._enrol(service, answer)

    async def draft(self, questions: Sequence[Question], deadline_s: float) -> dict[str, Drafts]:
        """What came in time, by request."""
        self._rounds += 1
        found: dict[str, Drafts] = {}
        running = [
            self._spawn(self._ask(service, questions, found))
            for service in self.services
            if questions and _available(service)
        ]
        if running:
            _, late = await asyncio.wait(running, timeout=deadline_s)
            if late:
                log.debug("%d services missed the deadline", len(late))
        return dict(found)  # a copy: what comes from now on is late

    def release(self, request_ids: list[str]) -> None:
        """Lets the services forget requests, in the background; their time-to-live covers lost calls."""
        for service in self.services:
            service.forget(request_ids)
            if service.description is not None and request_ids:
                self._spawn(self._release(service, request_ids))

    async def close(self) -> None:
        """Ends background work and connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in self.services:
            service.stream.reset()
            await service.channel.close()

    @property
    def outcomes(self) -> Counter[str]:
        """Of all services together."""
        return sum((service.outcomes for service in self.services), Counter())

    async def _ask(
        self, service: SpeculatorService, questions: Sequence[Question], found: dict[str, Drafts]
    ) -> None:
        this_round = self._rounds
        asked = {q.request_id: (q, entry) for q in questions if (entry := service.encode(q)) is not None}
        if not asked:
            return
        entries = [entry for _, entry in asked.values()]
        request = speculator_pb2.DraftRequest(step_id=this_round, entries=entries, client=self.client)
        service.busy = True
        try:
            reply = await exchange_drafts(
                service.address, service.stream, request, service.description, self.patience.hung_s
            )
        except UnavailableError as error:
            self._lost(service, error)
            return
        finally:
            service.busy = False
        service.outcomes["late"] += this_round != self._rounds
        open_ = {name: question for name, (question, _) in asked.items()}
        for result in reply.entries:
            drafts = service.accept(open_, result, self.target.vocab_size)
            open_.pop(result.request_id, None)  # one answer each
            if drafts:
                found.setdefault(result.request_id, []).extend(drafts)

    def _lost(self, service: SpeculatorService, error: UnavailableError) -> None:
        log.warning("going on without a speculator service: %s", error)
        service.outcomes["lost"] += 1
        service.description = None
        self._spawn(self._keep_describing(service, at_once=isinstance(error, ServiceChangedError)))

    def _enrol(self, service: SpeculatorService, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """From now on a service takes part, as it has said what it is.

        Raises:
            IncompatibleError: if it has another tokenizer.
        """
        theirs, ours = description.tokenizer_fingerprint, self.target.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise IncompatibleError(
                f"the speculators at {service.address} have tokenizer {theirs}, the target has {ours}"
            )
        names = [speculator.name for speculator in description.speculators]
        service.begins(description, tuple(map(self._number, speculator_keys(service.address, names))))
        log.info("speculators %s at %s are ready", ", ".join(names), service.address)

    async def _keep_describing(self, service: SpeculatorService, at_once: bool = False) -> None:
        pause, unfit = 0.0 if at_once else self.patience.retry_s, ""
        while service.description is None:
            await asyncio.sleep(pause)
            pause = self.patience.retry_s
            try:
                self._enrol(service, await describe_speculators(service.address, service.stub))
            except UnavailableError:
                continue  # still away: the round counts what it misses
            except IncompatibleError as error:
                if str(error) != unfit:
                    log.error("%s; it stays out", error)
                unfit = str(error)

    def _number(self, key: tuple[str, str, int]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    async def _release(self, service: SpeculatorService, request_ids: list[str]) -> None:
        request = common_pb2.ReleaseRequest(request_ids=request_ids, client=self.client)
        try:
            await service.stub.Release(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            log.debug("%s could not release: %s", service.address, error.details())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _service(address: str, channel: Any) -> SpeculatorService:
    stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
    return SpeculatorService(address, channel, stub, MessageStream(address, lambda: stub.Draft()))


def _available(service: SpeculatorService) -> bool:
    if service.description is not None and not service.busy:
        return True
    service.outcomes["missed"] += 1
    return False
