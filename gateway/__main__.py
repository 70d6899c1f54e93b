"""Start a gateway: settings -> app -> server."""

import asyncio
from collections.abc import Sequence

from gateway.app import build_gateway, end_process_if_failed, load_tokenizer, show_health
from gateway.settings import TRACE_RATIO, GatewaySettings
from gateway.store.connection import check_url
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics, service_registry
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.tracing import open_tracer
from specinfer.v1 import generation_pb2, generation_pb2_grpc

PROGRAM = "gateway"
SERVICE = generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name


async def serve(settings: GatewaySettings) -> None:
    """Serve until signalled."""
    registry = service_registry()
    serve_metrics(registry, settings.metrics_host, settings.metrics_port)
    if settings.embedded_store is None:
        check_url(settings.redis_url)  # before slow work, so that a bad URL fails at once
    tokenizer = load_tokenizer(settings)
    tracer = open_tracer(PROGRAM, settings, TRACE_RATIO)
    async with build_gateway(settings, tokenizer, registry, tracer) as gateway:
        gateway.running.add_done_callback(end_process_if_failed)
        server = ServiceServer(settings, [SERVICE], gateway.interceptors, settings.max_calls)
        generation_pb2_grpc.add_GenerationServicer_to_server(gateway.servicer, server.grpc)  # type: ignore[no-untyped-call]
        health = asyncio.create_task(show_health(gateway, server.set_serving))
        await run_until_signalled(server, before_stop=gateway.drain)
        health.cancel()
    if tracer is not None:
        tracer.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m gateway`."""
    run_service(PROGRAM, GatewaySettings, argv, lambda _: "gateway", serve)


if __name__ == "__main__":
    main()
