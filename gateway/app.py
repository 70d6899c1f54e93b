"""The wiring of a gateway: what its parts need of each other and of the verifier's description."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry

from gateway.clients.speculator_pool import PoolPolicy, SpeculatorPool
from gateway.clients.verifier import VerifierClient, pass_curve
from gateway.loop import GenerationLoop
from gateway.metrics import GatewayMetrics
from gateway.planning.budget import derive_budget
from gateway.planning.pass_times import PassCurve
from gateway.planning.planner import Planner
from gateway.requests.budget import NodeBudget
from gateway.requests.limits import SchedulerLimits
from gateway.requests.scheduler import Scheduler
from gateway.requests.store import RequestStore
from gateway.servicer import GenerationServicer, TargetInfo
from gateway.settings import GatewaySettings
from specinfer.errors import IncompatibleError
from specinfer.service.channel import open_channel, wait_until_serving
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that runs: its loop, and what answers clients."""

    loop: GenerationLoop
    servicer: GenerationServicer
    store: RequestStore
    running: asyncio.Task[None]
    """The loop's task; it ends only by a fault."""


@asynccontextmanager
async def build_gateway(
    settings: GatewaySettings, tokenizer: Tokenizer, registry: CollectorRegistry
) -> AsyncIterator[Gateway]:
    """Connects to Redis, verifier and speculators, and runs the loop until the context is left.

    Raises:
        UnavailableError: if Redis or the verifier does not answer in time.
        IncompatibleError: if a service does not fit the model's tokenizer.
    """
    store = RequestStore.connect(settings.redis_url, settings.retention_seconds)
    channels = [(address, open_channel(address)) for address in settings.speculator_addresses]
    verifier_channel = open_channel(settings.verifier)
    opened = [verifier_channel, *(channel for _, channel in channels)]
    try:
        await store.check()
        verifier, description = await _meet(verifier_channel, settings, tokenizer)
        policy = PoolPolicy(
            settings.draft_deadline_ms / 1000,
            description.vocab_size,
            description.tokenizer_fingerprint,
            settings.hung_seconds,
        )
        pool = SpeculatorPool(channels, policy)
        try:
            await pool.connect()
            loop = _loop(
                settings, description, pool, verifier, store, tokenizer, GatewayMetrics(registry, pool.names)
            )
            async with _running(loop) as task:
                servicer = GenerationServicer(loop, tokenizer, TargetInfo.of(description))
                yield Gateway(loop, servicer, store, task)
        finally:
            await pool.close()
    finally:
        await store.close()
        for channel in opened:
            await channel.close()


async def _meet(
    channel: grpc.aio.Channel, settings: GatewaySettings, tokenizer: Tokenizer
) -> tuple[VerifierClient, verifier_pb2.DescribeVerifierReply]:
    """Waits for the verifier, and refuses one with another tokenizer."""
    await wait_until_serving(channel, f"verifier at {settings.verifier}", settings.start_timeout_s)
    verifier = VerifierClient(channel, settings.hung_seconds)
    description = await verifier.describe()
    ours, theirs = tokenizer.fingerprint(), description.tokenizer_fingerprint
    if ours != theirs:
        raise IncompatibleError(f"the gateway has tokenizer {ours}, the verifier has {theirs}")
    return verifier, description


def _loop(
    settings: GatewaySettings,
    description: verifier_pb2.DescribeVerifierReply,
    pool: SpeculatorPool,
    verifier: VerifierClient,
    store: RequestStore,
    tokenizer: Tokenizer,
    metrics: GatewayMetrics,
) -> GenerationLoop:
    limits, curve = scheduler_limits(settings, description), pass_curve(description)
    budget = node_budget(settings, limits, curve)
    log.info("most nodes: %d of a tree, %d of a step", budget.per_request, budget.per_step)
    planner = Planner(curve, budget, settings.adaptive)
    scheduler = Scheduler(limits, budget)
    return GenerationLoop(
        scheduler, pool, verifier, store, tokenizer, metrics, planner, settings.verifier_patience_s
    )


@asynccontextmanager
async def _running(loop: GenerationLoop) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(loop.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def end_process_if_failed(task: "asyncio.Task[None]") -> None:
    """A loop that died of a bug must not leave a gateway that accepts requests and answers none."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the generation loop failed", exc_info=task.exception())
        sys.exit(70)


def scheduler_limits(
    settings: GatewaySettings, verifier: verifier_pb2.DescribeVerifierReply
) -> SchedulerLimits:
    """The gateway's own limits within those of the verifier."""
    return SchedulerLimits(
        max_batch=min(settings.max_batch, verifier.max_requests),
        max_waiting=settings.max_waiting,
        prefill_chunk=min(settings.prefill_chunk, verifier.max_step_tokens),
        tree_depth=settings.tree_depth or verifier.max_nodes,
        sequence_length=settings.sequence_length,
        max_step_tokens=verifier.max_step_tokens,
        kv_capacity_tokens=verifier.kv_capacity_tokens,
        kv_block_tokens=verifier.kv_block_tokens,
        kv_window_tokens=verifier.kv_window_tokens,
        max_tree_nodes=verifier.max_nodes - 1,
    )


def node_budget(settings: GatewaySettings, limits: SchedulerLimits, curve: PassCurve) -> NodeBudget:
    """The operator's, or what the verifier's passes allow."""
    return derive_budget(
        curve,
        limits.max_batch,
        limits.max_tree_nodes,
        limits.max_step_tokens,
        settings.tree_nodes,
        settings.step_nodes,
    )
