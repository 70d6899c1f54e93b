"""Start the HTTP service: settings -> app -> server."""

import asyncio
from collections.abc import Sequence

from http_svc.app import HttpServer, build_app
from http_svc.settings import HttpSettings
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import service_registry

PROGRAM = "http_svc"


async def serve(settings: HttpSettings) -> None:
    """Serve until signalled."""
    ending = asyncio.Event()
    server = HttpServer(settings, build_app(settings, settings.access, service_registry(), ending), ending)
    await server.run_until_signalled()


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m http_svc`."""
    run_service(PROGRAM, HttpSettings, argv, lambda _: "http", serve)


if __name__ == "__main__":
    main()
