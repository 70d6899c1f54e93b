"""`specinfer status`: what a gateway says of itself and of the system behind it, once or again and again."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.live import Live

from specinfer.cli.connection import Connection, client_tls
from specinfer.cli.options import DEFAULT_ADDRESS, Address, ApiKey, TlsCa, TlsCert, TlsKey
from specinfer.cli.show import output, status_table
from specinfer.cli.watch import Interval, Look, watch_lines, watch_table
from specinfer.client import AsyncClient
from specinfer.errors import UnavailableError
from specinfer.v1 import generation_pb2

Rows = list[tuple[str, str]]
Show = Callable[[Rows], None]


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on showing what it does, until Ctrl-C; in a pipe in blocks.")
    ] = False,
    interval_seconds: Annotated[float, typer.Option(min=0.1, help="Time between two looks.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many looks; 0: never.")] = 0,
    address: Address = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show a running system, as the first gateway that answers sees it."""
    connection = Connection(address, api_key, client_tls(tls_ca, tls_cert, tls_key))
    if not watch:
        output.print(status_table(address, get_status(connection)))
        return
    with _display(f"specinfer, gateway at {address}") as show:
        asyncio.run(_watch(connection, show, interval_seconds, count))


def get_status(connection: Connection) -> generation_pb2.StatusReply:
    """The state of the system behind a gateway.

    Raises:
        RequestFailedError: if a gateway refuses to tell.
        UnavailableError: if none answers.
    """
    return asyncio.run(_get_status(connection))


async def _get_status(connection: Connection) -> generation_pb2.StatusReply:
    async with connection.client() as client:
        return await client.status()


async def _watch(connection: Connection, show: Show, interval_s: float, count: int) -> None:
    """Looks again and again. A gateway that has answered once may be away for a while.

    Raises:
        RequestFailedError: if a gateway refuses to tell.
        UnavailableError: if none answers the first time.
    """
    before: Look | None = None
    async with connection.client() as client:
        for number in itertools.count(1):
            found = await _look(client, may_fail=number > 1)
            if isinstance(found, Look):
                show(Interval(before, found).rows())
                before = found
            else:
                show([("gateway", f"does not answer: {found}")])
            if number == count:
                return
            await asyncio.sleep(interval_s)


async def _look(client: AsyncClient, may_fail: bool) -> Look | UnavailableError:
    try:
        return Look(await client.status(), time.monotonic())
    except UnavailableError as error:
        if not may_fail:
            raise
        return error


@contextmanager
def _display(title: str) -> Iterator[Show]:
    """Shows in place in a terminal, and block after block elsewhere."""
    if not output.is_terminal:
        yield lambda rows: print(watch_lines(title, rows), end="\n\n", flush=True)
        return
    with Live(console=output, auto_refresh=False) as live:
        yield lambda rows: live.update(watch_table(title, rows), refresh=True)
