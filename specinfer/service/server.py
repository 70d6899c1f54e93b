"""Run a gRPC server with health and reflection, until drained."""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specinfer.errors import SettingError
from specinfer.service.channel import channel_options
from specinfer.service.entry_point import start_and_wait_for_signal
from specinfer.service.faults import FaultInterceptor, KeylessInterceptor
from specinfer.service.settings import ServiceSettings
from specinfer.service.tls import server_credentials
from specinfer.system.open_files import max_connections

MAX_MESSAGE_BYTES = 16 * 2**20
"""Maximum bytes of a message; senders split larger contents."""
MAX_CONNECTIONS = 8192
"""Maximum open connections; more are closed at once."""
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # fail if another process listens on the address
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none, as sizes are checked only after unpacking
    ("grpc.max_connection_idle_ms", 300_000),  # clients without calls connect again when they call
]
log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
INSTANCE_VARIABLE = "SPECINFER_INSTANCE"
"""Environment variable with the id of the system that started this service."""
LIVENESS = "liveness"
"""Health service name for liveness checks.

It ignores Redis and the verifiers, as restarting the gateway would not repair them.
"""


def instance_service(instance: str) -> str:
    """Return the name in health checks for an `INSTANCE_VARIABLE`."""
    return f"instance/{instance}"


class ServiceServer:
    """gRPC server with health, reflection and limits of calls."""

    def __init__(
        self,
        settings: ServiceSettings,
        service_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        max_calls: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Create a server with at most `max_calls` concurrent calls; None: no limit."""
        self._settings = settings
        self._names = list(service_names)
        self._serving = True
        self.grpc = grpc.aio.server(
            interceptors=[KeylessInterceptor(max_calls=max_calls), *interceptors, FaultInterceptor()],
            options=[
                *(*channel_options(max_message_bytes), *_OPTIONS),
                ("grpc.max_allowed_incoming_connections", max_connections(MAX_CONNECTIONS)),
            ],
            maximum_concurrent_rpcs=max_calls,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.grpc)

    async def start(self) -> int:
        """Bind, start serving and return the port."""
        port = self._bind()
        await self.grpc.start()
        instance = os.environ.get(INSTANCE_VARIABLE)
        for name in ["", *self._names, LIVENESS, *([instance_service(instance)] if instance else [])]:
            await self._health.set(name, SERVING)
        log.info(
            "serving %s on %s (port %d%s)", ", ".join(self._names), self._settings.listen, port, self._how
        )
        return port

    @property
    def _how(self) -> str:
        """TLS mode of the port, for the log."""
        tls = self._settings.tls
        return (", mutual TLS" if tls.client_ca else ", TLS") if tls.wanted else ""

    def _bind(self) -> int:
        listen, tls = self._settings.listen, self._settings.tls
        credentials = server_credentials(tls) if tls.wanted else None
        try:
            if credentials is None:
                return self.grpc.add_insecure_port(listen)
            return self.grpc.add_secure_port(listen, credentials)
        except RuntimeError as error:
            reason = "in use by another program, or not an address of this machine; choose another"
            raise SettingError("listen", listen, reason) from error

    async def set_serving(self, serving: bool) -> None:
        """Set the health status of all service names except `LIVENESS`."""
        if serving != self._serving:
            self._serving = serving
            for name in ["", *self._names]:
                await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def stop(self) -> None:
        """Report NOT_SERVING; end running calls after `drain_seconds`."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(self._settings.drain_seconds)


async def run_until_signalled(
    server: ServiceServer, before_stop: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Start the server, wait for SIGTERM or SIGINT, drain."""
    await start_and_wait_for_signal(server.start)
    if before_stop is not None:
        await before_stop()
    await server.stop()
