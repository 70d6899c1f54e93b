"""The wiring of a gateway: what its parts need of each other."""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from gateway.api.callers import Callers
from gateway.api.decode import RequestDecoder
from gateway.api.request_service import Desk
from gateway.api.servicer import GenerationServicer
from gateway.api.status import StatusReporter
from gateway.api.watch.replies import WatchReplies
from gateway.api.watch.watches import Watches
from gateway.cluster.follower import Follower
from gateway.cluster.lease_manager import Keeper
from gateway.cluster.rebalancing import Handovers
from gateway.cluster.sessions import Lanes
from gateway.observability.gauges import Gauges
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.observer import Journal
from gateway.observability.traces import RequestTraces
from gateway.session.constraints import Constraints
from gateway.session.limits import longest_request
from gateway.session.session import Shared
from gateway.session.step_recorder import StepRecorder
from gateway.session.token_stream import Feeds
from gateway.settings import GatewaySettings
from gateway.store.connection import RedisConnection
from gateway.store.leases import LeaseStore
from gateway.store.requests import RequestStore
from specinfer.errors import UnavailableError
from specinfer.planning.weights import load_weights
from specinfer.service.stream import MeterInterceptor
from specinfer.service.tracing import Tracer
from specinfer.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_DRAIN_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that runs."""

    settings: GatewaySettings
    lanes: Lanes
    keeper: Keeper
    store: RequestStore
    feeds: Feeds
    watches: Watches
    servicer: GenerationServicer
    running: asyncio.Task[None]
    """What keeps leases and follows requests; it ends only by a fault."""
    journal: Journal

    @property
    def meter(self) -> MeterInterceptor:
        """Counts the bytes of the messages that its clients send and get."""
        return MeterInterceptor(self.journal.metrics.system.meter("client"))

    async def drain(self) -> None:
        """Takes no new requests, lets other gateways go on with those that it has or finishes them, and
        lets its streams end; returns after the drain time at the latest."""
        deadline = time.monotonic() + self.settings.drain_seconds
        self.keeper.draining = True
        try:
            if await self.keeper.hand_over():
                log.info("another gateway goes on with the requests of this one")
        except UnavailableError as error:
            log.warning("nothing is handed over: %s", error)
        while self.feeds.unfinished and time.monotonic() < deadline:  # noqa: ASYNC110  # many things end them
            await asyncio.sleep(_DRAIN_POLL_S)
        self.feeds.fail_all(UnavailableError("this gateway ends; attach to the request at another one"))
        self.watches.close()


@asynccontextmanager
async def build_gateway(
    settings: GatewaySettings,
    tokenizer: Tokenizer,
    registry: CollectorRegistry,
    tracer: Tracer | None = None,
) -> AsyncIterator[Gateway]:
    """Connects to Redis, verifiers and speculators, and runs until the context is left.

    Raises:
        UnavailableError: if Redis or every verifier does not answer in time.
        IncompatibleError: if a service does not fit the model's tokenizer.
        SettingError: if a setting is wrong.
    """
    gateway_id = secrets.token_hex(8)
    journal, feeds = Journal(GatewayMetrics(registry), RequestTraces(tracer) if tracer else None), Feeds()
    system, watches = journal.metrics.system, Watches()
    callers = Callers.load(settings.key_file)
    weights, recorder = settings.weights_file, StepRecorder.open(settings.recording)
    trained = load_weights("planner_weights", weights) if weights is not None else {}
    connection = RedisConnection.open(settings.redis_url, **settings.redis_tls(settings.redis_url))
    store = RequestStore(connection, gateway_id, settings.retention_seconds, settings.max_waiting)
    leases = LeaseStore(connection, gateway_id, settings.lease_seconds)
    constraints = Constraints(tokenizer)
    shared = Shared(settings, tokenizer, journal, store, feeds, constraints, watches, recorder, trained)
    lanes = Lanes(shared, leases)
    keeper = Keeper(settings, leases, lanes, Handovers(settings, store, lanes, feeds), system)
    desk = Desk(settings, store, feeds, lanes, keeper, journal)
    try:
        await keeper.start()
        target = lanes.target
        context, longest = target.max_context_len, longest_request(target)
        constraints.prepare(target.vocab_size, target.eos_token_ids)
        decoder = RequestDecoder(
            *(tokenizer, target.vocab_size, context, target.eos_token_ids),
            longest=longest,
            check_constraint=constraints.check,
            reads_references=lambda: lanes.read_references,
        )
        status = StatusReporter(gateway_id, lanes, keeper, target, journal.totals)
        replies = WatchReplies(watches, tokenizer)
        servicer = GenerationServicer(
            desk, decoder, tokenizer, callers, status, replies, journal.metrics.requests.refused
        )
        async with _running(
            keeper, Follower(feeds, store, system), Gauges(journal.metrics, lanes, keeper)
        ) as task:
            log.info("gateway %s", gateway_id)
            yield Gateway(settings, lanes, keeper, store, feeds, watches, servicer, task, journal)
    finally:
        await desk.close()
        await lanes.close()
        await constraints.close()
        await keeper.leave()
        await connection.close()
        recorder.close()


@asynccontextmanager
async def _running(keeper: Keeper, follower: Follower, gauges: Gauges) -> AsyncIterator[asyncio.Task[None]]:
    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.run())
            tasks.create_task(follower.run())
            tasks.create_task(gauges.run())

    task = asyncio.create_task(all_of_them())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def end_process_if_failed(task: "asyncio.Task[None]") -> None:
    """A keeper that died of a bug must not leave a gateway that accepts requests and answers none."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the gateway failed", exc_info=task.exception())
        sys.exit(70)
