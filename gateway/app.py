"""Build a gateway from its parts, run the gateway, and drain it."""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict
from prometheus_client import CollectorRegistry

from gateway.api.callers import Callers
from gateway.api.decode import RequestDecoder
from gateway.api.entrance import KeyInterceptor
from gateway.api.request_service import RequestService
from gateway.api.servicer import GenerationServicer
from gateway.api.status import StatusReporter
from gateway.api.watch.pictures import WatchReplies
from gateway.api.watch.watches import Watches
from gateway.cluster.follower import Follower
from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.rebalancing import Rebalancer
from gateway.cluster.sessions import VerifierSessions
from gateway.observability.gauges import Gauges
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.observer import Observer
from gateway.observability.traces import RequestTraces
from gateway.session.constraints import Constraints
from gateway.session.limits import longest_request
from gateway.session.session import Shared
from gateway.session.token_stream import TokenStreams
from gateway.settings import RETENTION_SECONDS, GatewaySettings
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import Store
from specinfer.errors import UnavailableError
from specinfer.hub import model_name, resolve_model
from specinfer.planning.learned import load_weights
from specinfer.planning.step_recorder import StepRecorder
from specinfer.service.stream import MeterInterceptor
from specinfer.service.tracing import Tracer
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, verifier_pb2

log = logging.getLogger(__name__)
_DRAIN_POLL_S = 0.05
_HEALTH_S = 0.2


@dataclass(frozen=True, slots=True)
class Gateway:
    settings: GatewaySettings
    sessions: VerifierSessions
    lease_manager: LeaseManager
    store: Store
    token_streams: TokenStreams
    watches: Watches
    servicer: GenerationServicer
    running: asyncio.Task[None]
    """Task of lease manager and follower; only an exception ends it early."""
    observer: Observer
    clock: Callable[[], float]

    entrance: KeyInterceptor
    """Interceptor that checks callers before their messages are read."""
    status: StatusReporter

    @property
    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """Return the interceptors for authentication and byte counts."""
        return [self.entrance, MeterInterceptor(self.observer.meter("client"))]

    async def drain(self) -> None:
        """Refuse new requests; hand over the others, or wait for their end.

        Returns when all token streams have ended, or after `drain_seconds`.
        """
        deadline = self.clock() + self.settings.drain_seconds
        self.lease_manager.draining = True
        try:
            if await self.lease_manager.hand_over():
                log.info("another gateway continues the requests of this one")
        except UnavailableError as error:
            log.warning("this gateway keeps its requests and waits for their end: %s", error)
        while self.token_streams.unfinished and self.clock() < deadline:  # noqa: ASYNC110  # no common event
            await asyncio.sleep(_DRAIN_POLL_S)
        self.token_streams.fail_all(
            UnavailableError("this gateway is shutting down; attach to the request at another gateway")
        )
        self.watches.close()


def load_tokenizer(settings: GatewaySettings) -> Tokenizer:
    """Return the model's tokenizer, with the chat template of the settings."""
    tokenizer = Tokenizer.load(resolve_model(settings.model))
    if settings.chat_template:
        tokenizer.use_chat_template(Path(settings.chat_template))
    tokenizer.parse_special_tokens = settings.parse_special_tokens
    return tokenizer


@asynccontextmanager
async def build_gateway(
    settings: GatewaySettings,
    tokenizer: Tokenizer,
    registry: CollectorRegistry,
    tracer: Tracer | None = None,
    served_name: str = "",
    clock: Callable[[], float] = time.monotonic,
    store: Store | None = None,
    constraints: Constraints | None = None,
) -> AsyncIterator[Gateway]:
    """Connect to Redis, verifiers and speculators; yield the running gateway.

    Args:
        settings: settings of the gateway.
        tokenizer: the model's tokenizer.
        registry: gets the gateway's metrics.
        tracer: exports traces; None: no tracing.
        served_name: name of the model in vLLM's metrics; empty: derived from the settings.
        clock: returns monotonic seconds.
        store: stores requests and leases; None: that of the settings, which `open_store` opens.
        constraints: checks constraints; None: `Constraints` of the tokenizer.
    """
    store = store or open_store(settings, secrets.token_hex(8))
    gateway_id, token_streams, watches = store.gateway_id, TokenStreams(), Watches()
    named = (served_name or model_name(settings.model)) if settings.vllm_metrics else ""
    recorder = StepRecorder(settings.recording) if settings.recording is not None else None
    traces = RequestTraces(tracer) if tracer else None
    observer = Observer(GatewayMetrics(registry, named), traces, recorder.write if recorder else None)
    callers = Callers.load(settings.key_file, given=settings.api_key)
    weights = settings.weights_file
    trained = load_weights("planner", weights) if weights is not None else {}
    constraints = constraints or Constraints(tokenizer)
    shared = Shared(settings, tokenizer, observer, store, token_streams, constraints, watches, trained, clock)
    sessions = VerifierSessions(shared)
    lease_manager = LeaseManager(
        settings, store, sessions, Rebalancer(settings, store, sessions, clock), observer, clock
    )
    requests = RequestService(settings, store, token_streams, sessions, lease_manager, observer)
    try:
        await lease_manager.start()
        defaults = default_sampling(settings, sessions.target)
        decoder = _request_decoder(shared, sessions, defaults)
        gauges = Gauges(observer, sessions, lease_manager, clock)
        status = StatusReporter(
            gateway_id,
            sessions,
            lease_manager,
            sessions.target,
            lambda: observer.totals,
            tokenizer.chat_form,
            defaults,
            lambda: gauges.last_minute.growth(clock(), observer.totals),
        )
        replies = WatchReplies(watches, tokenizer, clock)
        servicer = GenerationServicer(
            requests, decoder, tokenizer, callers, status, replies, observer.metrics.requests.refused
        )
        follower = Follower(token_streams, store, observer, clock)
        async with _running(lease_manager, follower, gauges) as task:
            log.info("gateway %s is ready", gateway_id)
            shown = MessageToDict(defaults) or "OpenAI's defaults"
            log.info("sampling where a request says nothing: %s", shown)
            yield Gateway(
                *(settings, sessions, lease_manager, store, token_streams, watches, servicer, task, observer),
                clock,
                KeyInterceptor(callers, observer.metrics.requests.refused),
                status,
            )
    finally:
        await requests.close()
        await sessions.close()
        await constraints.close()
        await lease_manager.leave()
        await store.close()
        if recorder is not None:
            recorder.close()


def _request_decoder(
    shared: Shared, sessions: VerifierSessions, defaults: common_pb2.SamplingParams
) -> RequestDecoder:
    """Create the request decoder; prepare constraints for the target's vocabulary."""
    target, constraints = sessions.target, shared.constraints
    constraints.prepare(target.vocab_size, target.eos_token_ids)
    _ = shared.tokenizer.byte_decoder  # slow on first use: do it before any step
    return RequestDecoder(
        *(shared.tokenizer, target.vocab_size, target.max_context_len, target.eos_token_ids),
        longest=longest_request(target),
        check_constraint=constraints.check,
        is_checked=constraints.is_checked,
        reads_references=lambda: sessions.read_references,
        check_quota=shared.store.check_quota,
        default_sampling=defaults,
    )


def default_sampling(
    settings: GatewaySettings, target: verifier_pb2.DescribeVerifierReply
) -> common_pb2.SamplingParams:
    """Return the values of sampling parameters that a request leaves unset."""
    return target.default_sampling if settings.generation_config == "model" else common_pb2.SamplingParams()


def open_store(settings: GatewaySettings, gateway_id: str) -> Store:
    """Open the store: in Redis, or in this process for a single gateway."""
    if (path := settings.embedded_store) is not None:
        return EmbeddedStore(gateway_id, RETENTION_SECONDS, settings.max_waiting, path or None)
    from gateway.store.connection import RedisConnection
    from gateway.store.redis import RedisStore

    connection = RedisConnection.open(settings.redis_url, **settings.redis_tls(settings.redis_url))
    return RedisStore(connection, gateway_id, RETENTION_SECONDS, settings.max_waiting, settings.lease_seconds)


@asynccontextmanager
async def _running(
    lease_manager: LeaseManager, follower: Follower, gauges: Gauges
) -> AsyncIterator[asyncio.Task[None]]:
    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lease_manager.run())
            tasks.create_task(follower.run())
            tasks.create_task(gauges.run())

    task = asyncio.create_task(all_of_them())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def show_health(gateway: Gateway, set_serving: Callable[[bool], Awaitable[None]]) -> None:
    """Update the health status every `_HEALTH_S` seconds."""
    while True:
        await set_serving(gateway.lease_manager.ready)
        await asyncio.sleep(_HEALTH_S)


def end_process_if_failed(task: "asyncio.Task[None]") -> None:
    """End the process if the lease manager has failed.

    Otherwise the gateway would accept requests and answer none.
    """
    if not task.cancelled() and task.exception() is not None:
        log.critical("the lease manager or follower failed, the gateway exits", exc_info=task.exception())
        sys.exit(70)
