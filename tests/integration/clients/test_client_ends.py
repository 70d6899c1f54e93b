"""Closing a client fails its calls, and a request that nobody waits for is cancelled."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from specinfer import AsyncClient, Client, Patience, RequestFailedError, UnavailableError
from tests.support.network.fake_gateway import Turn, fake_gateways

HANGS = Turn(replies=3, hangs=True)
CLOSED = "the client was closed"


async def _watch(client: AsyncClient) -> None:
    async for _ in client.watch():
        pass


async def _stream(client: AsyncClient) -> None:
    async for _ in client.stream("hi"):
        pass


USES: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "watch": _watch,
    "stream": _stream,
    "generate": lambda client: client.generate("hi"),
    "attach": lambda client: client.attach("r").read(),
    "status": lambda client: client.status(),
    "cancel": lambda client: client.cancel("r"),
}


@pytest.mark.parametrize("name", USES)
async def test_calls_of_a_closed_client_fail(name: str) -> None:
    async with fake_gateways([]) as (gateway,):
        client = AsyncClient(gateway.address)
        await client.close()
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError, match=CLOSED):
                await USES[name](client)


@pytest.mark.parametrize("name", ["watch", "stream", "generate", "attach"])
async def test_running_calls_end_when_the_client_is_closed(name: str) -> None:
    async with fake_gateways([HANGS]) as (gateway,):
        client = AsyncClient(gateway.address)
        using = asyncio.ensure_future(USES[name](client))
        await gateway.reached.wait()
        await client.close()
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError, match=CLOSED):
                await using


async def test_a_pause_before_another_attempt_ends_when_the_client_is_closed() -> None:
    waiting = asyncio.Event()
    patience = Patience(patience_s=1e6, first_wait_s=1e5, longest_wait_s=1e5)
    async with fake_gateways([Turn(replies=1, ends=True)]) as (gateway,):
        client = AsyncClient(gateway.address, patience=patience, on_retry=lambda _: waiting.set())
        using = asyncio.ensure_future(client.generate("hi"))
        await waiting.wait()
        await client.close()
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError, match=CLOSED):
                await using


@pytest.mark.filterwarnings("error")
async def test_a_closed_client_fails_in_all_threads() -> None:
    async with fake_gateways([HANGS]) as (gateway,):
        client, errors = Client(gateway.address), list[BaseException]()

        def ask() -> None:
            try:
                client.generate("hi")
            except UnavailableError as error:
                errors.append(error)

        other = threading.Thread(target=ask)
        other.start()
        await gateway.reached.wait()
        stream = client.attach("r")
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(other.join, 60)
        assert [str(error) for error in errors] == [CLOSED]
        for use in (client.status, lambda: client.generate("hi"), lambda: next(stream)):
            with pytest.raises(UnavailableError, match=CLOSED):
                use()
        stream.close()
        gc.collect()  # a coroutine that was never awaited would warn


async def test_a_request_is_cancelled_with_the_task_that_waits_for_it() -> None:
    async with fake_gateways([HANGS]) as (gateway,), AsyncClient(gateway.address) as client:
        asking = asyncio.create_task(client.generate("hi", request_id="mine"))
        await gateway.reached.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await client.close()  # sends the cancellation before it returns
        assert gateway.cancelled == ["mine"]


async def test_a_request_is_cancelled_where_its_text_is_not_wanted() -> None:
    async with fake_gateways([HANGS]) as (gateway,):

        def unwanted(_: str) -> None:
            raise KeyError("a fault of the caller")

        async with AsyncClient(gateway.address) as client:
            with pytest.raises(KeyError):
                await client.generate("hi", unwanted, request_id="mine")
        assert gateway.cancelled == ["mine"]


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_request_that_ended_is_not_cancelled(wanted: bool) -> None:
    import grpc

    script = [] if wanted else [Turn(replies=0, code=grpc.StatusCode.INVALID_ARGUMENT)]
    async with fake_gateways(script) as (gateway,):
        async with AsyncClient(gateway.address) as client:
            try:
                await client.generate("hi")
            except RequestFailedError:
                assert not wanted
        assert gateway.cancelled == []
