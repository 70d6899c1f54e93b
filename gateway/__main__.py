"""Starts a gateway: settings -> app -> server."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.app import Gateway, build_gateway, end_process_if_failed
from gateway.settings import GatewaySettings
from specinfer.hub import resolve_model
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics, service_registry
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.tracing import open_tracer
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2, generation_pb2_grpc

_HEALTH_S = 0.2
PROGRAM = "gateway"
SERVICE = generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name


async def serve(settings: GatewaySettings) -> None:
    """Serve until signalled."""
    registry = service_registry()
    serve_metrics(registry, settings.metrics_host, settings.metrics_port)
    tokenizer = Tokenizer.load(resolve_model(settings.model))
    if settings.chat_template:
        tokenizer.use_chat_template(Path(settings.chat_template))
    tracer = open_tracer(PROGRAM, settings, settings.trace_ratio)
    async with build_gateway(settings, tokenizer, registry, tracer) as gateway:
        gateway.running.add_done_callback(end_process_if_failed)
        server = ServiceServer(settings, [SERVICE], gateway.interceptors, settings.max_calls)
        generation_pb2_grpc.add_GenerationServicer_to_server(gateway.servicer, server.grpc)  # type: ignore[no-untyped-call]
        health = asyncio.create_task(_show_health(gateway, server))
        await run_until_signalled(server, before_stop=gateway.drain)
        health.cancel()
    if tracer is not None:
        tracer.close()


async def _show_health(gateway: Gateway, server: ServiceServer) -> None:
    """Report SERVING in health while a request that comes now would be served."""
    while True:
        await server.set_serving(gateway.lease_manager.ready)
        await asyncio.sleep(_HEALTH_S)


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m gateway`."""
    run_service(PROGRAM, GatewaySettings, argv, lambda _: "gateway", serve)


if __name__ == "__main__":
    main()
