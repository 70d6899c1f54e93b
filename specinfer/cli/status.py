"""`specinfer status`: what a gateway says of itself and of the system behind it."""

import asyncio

from specinfer.cli.connection import Connection, client_tls
from specinfer.cli.options import DEFAULT_ADDRESS, Address, ApiKey, TlsCa, TlsCert, TlsKey
from specinfer.cli.show import output, status_table
from specinfer.v1 import generation_pb2


def status(
    address: Address = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show a running system, as the first gateway that answers sees it."""
    connection = Connection(address, api_key, client_tls(tls_ca, tls_cert, tls_key))
    output.print(status_table(address, get_status(connection)))


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
