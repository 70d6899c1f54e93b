"""Starts a gateway: settings -> verifier, speculators, Redis -> loop -> servicer -> server."""

import asyncio
import logging
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from gateway.clients.speculator_pool import PoolPolicy, SpeculatorPool
from gateway.clients.verifier import VerifierClient
from gateway.loop import GenerationLoop
from gateway.metrics import GatewayMetrics
from gateway.planning.pass_times import PassCurve
from gateway.planning.planner import Planner
from gateway.requests.scheduler import Scheduler, SchedulerLimits
from gateway.requests.store import RequestStore
from gateway.servicer import GenerationServicer, TargetInfo
from gateway.settings import GatewaySettings
from specinfer.errors import IncompatibleError
from specinfer.hub import resolve_model
from specinfer.service.channel import open_channel, wait_until_serving
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2, generation_pb2_grpc, verifier_pb2

PROGRAM = "gateway"
SERVICE = generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name
log = logging.getLogger(__name__)


def scheduler_limits(
    settings: GatewaySettings, verifier: verifier_pb2.DescribeVerifierReply
) -> SchedulerLimits:
    """The gateway's own limits within those of the verifier."""
    return SchedulerLimits(
        max_batch=min(settings.max_batch, verifier.max_requests),
        max_waiting=settings.max_waiting,
        prefill_chunk=min(settings.prefill_chunk, verifier.max_step_tokens),
        tree_depth=settings.tree_depth,
        sequence_length=settings.sequence_length,
        max_step_tokens=verifier.max_step_tokens,
        kv_capacity_tokens=verifier.kv_capacity_tokens,
        kv_block_tokens=verifier.kv_block_tokens,
        kv_window_tokens=verifier.kv_window_tokens,
        max_tree_nodes=verifier.max_nodes - 1,
    )


def check_tokenizer(ours: str, verifier: verifier_pb2.DescribeVerifierReply) -> None:
    """Refuses a verifier with another tokenizer.

    Raises:
        IncompatibleError: naming both fingerprints.
    """
    if ours != verifier.tokenizer_fingerprint:
        raise IncompatibleError(
            f"the gateway has tokenizer {ours}, the verifier has {verifier.tokenizer_fingerprint}"
        )


def pass_curve(verifier: verifier_pb2.DescribeVerifierReply) -> PassCurve:
    """What the verifier's passes take.

    Raises:
        IncompatibleError: if it does not tell.
    """
    if not verifier.pass_costs:
        raise IncompatibleError("the verifier does not tell what its passes take (pass_costs is empty)")
    return PassCurve((cost.tokens, cost.microseconds / 1e6) for cost in verifier.pass_costs)


async def serve(settings: GatewaySettings) -> None:
    """Serves until signalled."""
    tokenizer = Tokenizer.load(resolve_model(settings.model))
    store = RequestStore.connect(settings.redis_url, settings.retention_seconds)
    await store.check()
    verifier_channel = open_channel(settings.verifier)
    await wait_until_serving(verifier_channel, f"verifier at {settings.verifier}", settings.start_timeout_s)
    verifier = VerifierClient(verifier_channel)
    description = await verifier.describe()
    check_tokenizer(tokenizer.fingerprint(), description)
    channels = [(address, open_channel(address)) for address in settings.speculator_addresses]
    policy = PoolPolicy(
        settings.draft_deadline_ms / 1000, description.vocab_size, description.tokenizer_fingerprint
    )
    pool = SpeculatorPool(channels, policy)
    await pool.connect()
    registry = CollectorRegistry()
    serve_metrics(registry, settings.metrics_port)
    scheduler = Scheduler(scheduler_limits(settings, description), settings.budget)
    metrics = GatewayMetrics(registry)
    planner = Planner(pass_curve(description), settings.tree_nodes, settings.step_nodes, settings.adaptive)
    loop = GenerationLoop(
        scheduler, pool, verifier, store, tokenizer, metrics, planner, settings.verifier_patience_s
    )
    server = ServiceServer(settings, [SERVICE])
    servicer = GenerationServicer(loop, tokenizer, TargetInfo.of(description))
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    running = asyncio.create_task(loop.run())
    running.add_done_callback(_end_process_if_failed)
    try:
        await run_until_signalled(server)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()
        await store.close()
        for channel in [verifier_channel, *(channel for _, channel in channels)]:
            await channel.close()


def _end_process_if_failed(task: "asyncio.Task[None]") -> None:
    """A loop that died of a bug must not leave a gateway that accepts requests and answers none."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the generation loop failed", exc_info=task.exception())
        sys.exit(70)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `python -m gateway`."""
    run_service(PROGRAM, GatewaySettings, argv, lambda _: "gateway", serve)


if __name__ == "__main__":
    main()
