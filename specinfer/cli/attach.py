"""`specinfer attach`: the rest of a request that was begun elsewhere. `specinfer cancel`: its end."""

import asyncio
from typing import Annotated

import typer

from specinfer.cli.connection import Connection, client_tls
from specinfer.cli.generate import print_answer, print_text, silent
from specinfer.cli.options import (
    DEFAULT_ADDRESS,
    DEFAULT_PATIENCE_S,
    Address,
    ApiKey,
    JsonOutput,
    PatienceSeconds,
    TlsCa,
    TlsCert,
    TlsKey,
)
from specinfer.cli.show import print_retry, print_way_back
from specinfer.client import Answer, AsyncClient, Patience, StreamLostError
from specinfer.prompts import check_text

RequestId = Annotated[str, typer.Argument(help="Id of the request.")]


def attach(
    request_id: RequestId,
    from_token: Annotated[int, typer.Option(help="Tokens that are there already.")] = 0,
    json_output: JsonOutput = False,
    address: Address = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    patience_seconds: PatienceSeconds = DEFAULT_PATIENCE_S,
) -> None:
    """Stream the rest of a request, which may have ended. Ctrl-C leaves it running."""
    connection = Connection(address, api_key, client_tls(tls_ca, tls_cert, tls_key))
    client = connection.client(Patience(patience_seconds), print_retry)
    check_text("request_id", request_id)
    print_answer(asyncio.run(_attach(client, request_id, from_token, json_output)), json_output)


async def _attach(client: AsyncClient, request_id: str, from_token: int, quiet: bool) -> Answer:
    async with client, client.attach(request_id, from_token) as stream:
        try:
            return await stream.read(silent if quiet else print_text)
        except StreamLostError as error:
            print_way_back(error)
            raise


def cancel(
    request_id: RequestId,
    address: Address = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Stop a running request; it ends with the tokens it has."""
    connection = Connection(address, api_key, client_tls(tls_ca, tls_cert, tls_key))
    asyncio.run(_cancel(connection.client(), check_text("request_id", request_id)))


async def _cancel(client: AsyncClient, request_id: str) -> None:
    async with client:
        await client.cancel(request_id)
