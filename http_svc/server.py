"""uvicorn as a service of ours: it binds first, ends with exit code 0 on SIGTERM, and logs as we do."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from http_svc.settings import HttpSettings
from specinfer.errors import SettingError
from specinfer.service.addresses import split_address
from specinfer.service.signals import start_and_wait_for_signal

log = logging.getLogger(__name__)
_LAST_WORDS_S = 5
"""For calls that are told to end."""
_BACKLOG = 2048
"""Connections that wait to be accepted: hundreds may come at once."""


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal once more when it has ended."""
        yield


class HttpServer:
    """A server of one application. `start`, then `stop`; or `run_until_signalled`."""

    def __init__(self, settings: HttpSettings, app: ASGIApp, ending: asyncio.Event) -> None:
        """`ending` tells the application that calls that still run must end."""
        self._settings, self._ending = settings, ending
        tls = settings.tls
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + _LAST_WORDS_S,
                ssl_certfile=tls.certificate,
                ssl_keyfile=tls.key,
                ssl_ca_certs=None if tls.client_ca is None else str(tls.client_ca),
                ssl_cert_reqs=ssl.CERT_NONE if tls.client_ca is None else ssl.CERT_REQUIRED,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def start(self) -> int:
        """Binds, starts serving and returns the port.

        Raises:
            SettingError: if the address cannot be bound.
        """
        bound = bind(self._settings.listen)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110  uvicorn tells nobody
            await asyncio.sleep(0.005)
        if self._serving.done():
            await self._serving
        port: int = bound.getsockname()[1]
        scheme = "https" if self._settings.tls.wanted else "http"
        log.info("serving %s on %s (port %d)", scheme, self._settings.listen, port)
        return port

    async def stop(self) -> None:
        """Takes no more calls, lets those that run finish for the drain time, then ends them."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=self._settings.drain_seconds)
            self._ending.set()
            await self._serving

    async def run_until_signalled(self) -> None:
        """Starts, waits for SIGTERM or SIGINT, drains."""
        await start_and_wait_for_signal(self.start)
        await self.stop()


def bind(listen: str) -> socket.socket:
    """A socket that listens.

    Raises:
        SettingError: if the address cannot be bound.
    """
    host, port = split_address("listen", listen, lowest_port=0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingError("listen", listen, error.strerror or "cannot bind this address") from error
