"""Starts everything in one process: verifier -> gateway -> HTTP service, joined by in-process channels."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry

from all_in_one.metrics import united
from all_in_one.settings import GATEWAY, VERIFIER, ServeSettings
from gateway.api.callers import Callers
from gateway.app import Gateway, build_gateway, end_process_if_failed, open_store
from gateway.settings import EMBEDDED, GatewaySettings
from http_svc.app import HttpServer, bind, build_app
from specinfer.hub import resolve_model
from specinfer.service.entry_point import run_service, start_and_wait_for_signal
from specinfer.service.in_process import SCHEME, InProcessServer
from specinfer.service.metrics import service_registry
from specinfer.service.server import NOT_SERVING, SERVING
from specinfer.service.threads import EngineThread
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2_grpc, verifier_pb2_grpc

PROGRAM = "all_in_one"
_HEALTH_S = 0.2


async def serve(settings: ServeSettings) -> None:
    """Serve until signalled."""
    await check_before_loading(settings)
    registries = [service_registry(), CollectorRegistry(), CollectorRegistry()]
    ending, thread = asyncio.Event(), EngineThread("engine")
    async with verifier(settings, thread, registries[1]), gateway(settings, registries[2]) as one:
        one.running.add_done_callback(end_process_if_failed)
        app = build_app(settings, registries[0], ending, shown=united(registries))
        server = HttpServer(settings, app, ending)
        await start_and_wait_for_signal(server.start)
        await one.drain()
        await server.stop()
    thread.stop()


async def check_before_loading(settings: ServeSettings) -> None:
    """Check what else would be found wrong only once the model is loaded, which takes long.

    Raises:
        SettingError: naming the address that is taken, or the file that cannot be used.
    """
    bind(settings.listen).close()
    own = gateway_settings(settings)
    Callers.load(own.key_file)
    load_tokenizer(settings)
    _, _, close_store = open_store(own, "")
    await close_store()


def gateway_settings(settings: ServeSettings) -> GatewaySettings:
    """Return the settings of the gateway in this process.

    Raises:
        SettingError: if one is wrong.
    """
    shared = (
        "model",
        "api_keys",
        "chat_template",
        "max_batch",
        "max_waiting",
        "never_slower",
        "drain_seconds",
    )
    given = {name: getattr(settings, name) for name in shared}
    own = GatewaySettings(**given, verifiers=VERIFIER, redis_url=f"{EMBEDDED}{settings.store}")
    own.check()
    return own


def load_tokenizer(settings: ServeSettings) -> Tokenizer:
    """Return the model's tokenizer, with the chat template that is wanted."""
    tokenizer = Tokenizer.load(resolve_model(settings.model))
    if settings.chat_template:
        tokenizer.use_chat_template(Path(settings.chat_template))
    return tokenizer


@asynccontextmanager
async def verifier(
    settings: ServeSettings, thread: EngineThread, registry: CollectorRegistry
) -> AsyncIterator[None]:
    """Serve the model at `in-process:verifier`."""
    from verifier_svc.app import load_runner, make_servicer, with_held_weights  # loads torch
    from verifier_svc.settings import VerifierSettings

    shared = ("model", "dtype", "device", "weights", "drafters", "kv_tokens", "max_context_len")
    own = VerifierSettings(**{name: getattr(settings, name) for name in shared})
    own.check()
    own = await thread.call(with_held_weights, own)
    runner = await thread.call(load_runner, own)
    servicer = await make_servicer(own, thread, runner, registry)
    server = InProcessServer(VERIFIER.removeprefix(SCHEME))
    verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        server.close()


@asynccontextmanager
async def gateway(settings: ServeSettings, registry: CollectorRegistry) -> AsyncIterator[Gateway]:
    """Serve requests at `in-process:gateway`."""
    own, tokenizer = gateway_settings(settings), load_tokenizer(settings)
    server, healthy = InProcessServer(GATEWAY.removeprefix(SCHEME)), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    try:
        async with build_gateway(own, tokenizer, registry) as built:
            generation_pb2_grpc.add_GenerationServicer_to_server(built.servicer, server)  # type: ignore[no-untyped-call]
            showing = asyncio.create_task(_show_health(built, healthy))
            try:
                yield built
            finally:
                showing.cancel()
    finally:
        server.close()


async def _show_health(built: Gateway, healthy: "health.aio.HealthServicer") -> None:
    """Report SERVING in health while a request that comes now would be served."""
    while True:
        await healthy.set("", SERVING if built.lease_manager.ready else NOT_SERVING)
        await asyncio.sleep(_HEALTH_S)


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m all_in_one`, which `specinfer serve` does."""
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # before torch: its idle threads would take the others' cores
    run_service(PROGRAM, ServeSettings, argv, lambda _: "server", serve)


if __name__ == "__main__":
    main()
