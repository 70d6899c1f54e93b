"""Runs verifier, gateway and HTTP service in one process."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from all_in_one.door import command_door
from all_in_one.settings import ServeSettings
from gateway.api.callers import Callers
from gateway.app import (
    Gateway,
    build_gateway,
    end_process_if_failed,
    load_tokenizer,
    open_store,
    show_health,
)
from gateway.settings import EMBEDDED, GatewaySettings, RequestSettings
from http_svc.app import HttpServer, build_app
from http_svc.settings import GatewayAccess
from specinfer.drafters.draft import check_named_draft
from specinfer.hub import model_name
from specinfer.service.entry_point import start_and_wait_for_signal
from specinfer.service.in_process import SCHEME, InProcessServer
from specinfer.service.metrics import service_registry
from specinfer.service.server import NOT_SERVING, SERVING
from specinfer.service.settings import ProcessSettings
from specinfer.service.threads import EngineThread
from specinfer.service.tls import ClientTls
from specinfer.system.progress import latest_work
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2_grpc, verifier_pb2_grpc

GATEWAY, VERIFIER = "in-process:gateway", "in-process:verifier"


async def serve(settings: ServeSettings) -> None:
    """Serve until signalled; the port is open while the model is loading."""
    of_gateway = gateway_settings(settings)
    registries = [service_registry(), CollectorRegistry(), CollectorRegistry()]
    ending, thread = asyncio.Event(), EngineThread("engine")
    name = next(iter(settings.model_names), model_name(settings.model))
    access = GatewayAccess((GATEWAY,), ClientTls())
    with latest_work() as work:
        app = build_app(settings, access, registries[0], ending, shown=united(registries), loading=work)
        server = HttpServer(settings, app, ending)
        port = await server.start()
        try:
            tokenizer = await thread.call(check_before_loading, settings, of_gateway)
            await open_store(of_gateway, "").close()
            async with (
                verifier(settings, thread, registries[1], tokenizer),
                gateway(of_gateway, tokenizer, registries[2], name) as one,
            ):
                one.running.add_done_callback(end_process_if_failed)
                work.end()
                async with command_door(one, settings, port):
                    await start_and_wait_for_signal()
                    await drain(one, server, settings.drain_seconds)
        finally:
            await server.stop(0)
    thread.stop()


async def drain(one: Gateway, server: HttpServer, seconds: float) -> None:
    """Wait for requests, then for HTTP calls, to end within `seconds`."""
    until = time.monotonic() + seconds
    await one.drain()
    await server.stop(max(0.0, until - time.monotonic()))


def check_before_loading(settings: ServeSettings, gateway: GatewaySettings) -> Tokenizer:
    """Check files before the model loads; return its tokenizer."""
    Callers.load(gateway.key_file, given=gateway.api_key)
    tokenizer = load_tokenizer(gateway)
    check_named_draft(settings.model, settings.draft)
    return tokenizer


def gateway_settings(settings: ServeSettings) -> GatewaySettings:
    """Return the settings of the gateway in this process."""
    names = (
        "model",
        "drain_seconds",
        *RequestSettings.model_fields.keys() - ProcessSettings.model_fields.keys(),
    )
    given = {name: getattr(settings, name) for name in names}
    settings_of_gateway = GatewaySettings(
        **given, verifiers=VERIFIER, redis_url=f"{EMBEDDED}{settings.store}"
    )
    settings_of_gateway.check()
    return settings_of_gateway


@asynccontextmanager
async def verifier(
    settings: ServeSettings,
    thread: EngineThread,
    registry: CollectorRegistry,
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[None]:
    """Serve the model at `in-process:verifier`."""
    from specinfer.model.threads import use_threads
    from verifier_svc.app import load_models, make_servicer
    from verifier_svc.settings import VerifierSettings

    shared = VerifierSettings.model_fields.keys() & type(settings).model_fields.keys()
    given = {name: getattr(settings, name) for name in shared - ProcessSettings.model_fields.keys()}
    verifier_settings = VerifierSettings(**given)
    verifier_settings.check()
    use_threads(verifier_settings.threads)
    models = await thread.call(load_models, verifier_settings)
    servicer = await make_servicer(verifier_settings, thread, models, registry, tokenizer=tokenizer)
    server = InProcessServer(VERIFIER.removeprefix(SCHEME))
    verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        server.close()
        await thread.call(models.runner.cache.pool.save_prefixes)


@asynccontextmanager
async def gateway(
    settings: GatewaySettings, tokenizer: Tokenizer, registry: CollectorRegistry, name: str
) -> AsyncIterator[Gateway]:
    """Serve requests at `in-process:gateway`."""
    server, healthy = InProcessServer(GATEWAY.removeprefix(SCHEME)), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)

    async def set_serving(serving: bool) -> None:
        await healthy.set("", SERVING if serving else NOT_SERVING)

    try:
        async with build_gateway(settings, tokenizer, registry, served_name=name) as built:
            generation_pb2_grpc.add_GenerationServicer_to_server(built.servicer, server)  # type: ignore[no-untyped-call]
            showing = asyncio.create_task(show_health(built, set_serving))
            try:
                yield built
            finally:
                showing.cancel()
    finally:
        server.close()


class Union(Collector):
    """Metrics of several registries; the first registry wins for equal names."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        seen = set[str]()
        for registry in self._registries:
            for metric in registry.collect():
                if metric.name not in seen:
                    seen.add(metric.name)
                    yield metric


def united(registries: Sequence[CollectorRegistry]) -> CollectorRegistry:
    """Return a registry with the metrics of all these registries."""
    whole = CollectorRegistry(auto_describe=False)
    whole.register(Union(registries))
    return whole
