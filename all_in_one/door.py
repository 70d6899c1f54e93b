"""A Unix socket of `serve` with the gateway's calls, which this user's commands find."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

from all_in_one.settings import ServeSettings
from gateway.app import Gateway
from specinfer.client.described import ready_line
from specinfer.service.channel import split_address
from specinfer.service.server import ServiceServer
from specinfer.system.running import announced
from specinfer.system.threads import thread_count
from specinfer.v1 import generation_pb2, generation_pb2_grpc

log = logging.getLogger(__name__)
SERVICE = generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@asynccontextmanager
async def command_door(one: Gateway, settings: ServeSettings, port: int) -> AsyncIterator[None]:
    """Serve the gateway's calls to commands of this user, who alone can open the socket.

    Announces this process, whose HTTP server has the port, and logs the line of a ready system.
    """
    with TemporaryDirectory(prefix="specinfer-") as folder:
        address, url = f"unix:{folder}/gateway", base_url(settings, port)
        here = one.settings.model_copy(update={"listen": address})
        server = ServiceServer(here, [SERVICE], one.interceptors, here.max_calls)
        generation_pb2_grpc.add_GenerationServicer_to_server(one.servicer, server.grpc)  # type: ignore[no-untyped-call]
        await server.start()
        try:
            with announced("serve", address, url):
                log.info("ready: %s", ready_line(url, one.status.reply(), thread_count(settings.threads)))
                yield
        finally:
            await server.grpc.stop(0)


def base_url(settings: ServeSettings, port: int) -> str:
    """Return the URL at which this machine reaches the HTTP server."""
    host = split_address("listen", settings.listen, lowest_port=0)[0]
    shown = _WILDCARDS.get(host, f"[{host}]" if ":" in host else host)
    return f"http{'s' if settings.tls.wanted else ''}://{shown}:{port}"
