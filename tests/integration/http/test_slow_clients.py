"""Clients of the HTTP service that send slowly or endlessly."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from types import SimpleNamespace

import pytest

from http_svc.entry import bounds, middleware
from http_svc.entry.connection import BoundedConnection
from tests.support.network.fake_gateway import fake_gateways
from tests.support.network.http_service import ASKED, CHAT, MODEL, HttpService, http_service
from tests.support.system import until

BOUNDS = {"HEADER_SECONDS": 60.0, "BODY_SECONDS": 60.0, "HEADER_BYTES": 16 * bounds.KIBIBYTE}
"""Limits of all tests except those that wait for one."""
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def bounded(**seconds: float) -> AsyncIterator[tuple[HttpService, Callable[..., Awaitable[Pipe]]]]:
    """Run a service with limits; yield it and a function that opens connections."""
    writers = []
    async with fake_gateways([]) as (gateway,):
        gateway.states.append(MODEL)
        with pytest.MonkeyPatch.context() as patch:
            for name in seconds.keys() | BOUNDS:
                if name.isupper():
                    patch.setattr(bounds, name, seconds.get(name, BOUNDS.get(name)))
            settings = {name: value for name, value in seconds.items() if name.islower()}
            async with http_service(gateway.address, **settings) as http:

                async def connect(data: bytes = b"") -> Pipe:
                    host, port = http.url.removeprefix("http://").split(":")
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writers.append(writer)
                    writer.write(data)
                    return reader, writer

                yield http, connect
                for writer in writers:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()


def kind_of_connections(http: HttpService) -> type[BoundedConnection]:
    kind = http.server._server.config.http
    assert isinstance(kind, type)
    assert issubclass(kind, BoundedConnection)
    return kind


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes until the service closes the connection."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""


@asynccontextmanager
async def dripping(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    async def drip() -> None:
        while not writer.is_closing():
            writer.write(b"1")
            await asyncio.sleep(0.02)

    task = asyncio.create_task(drip())
    yield
    task.cancel()


HALF = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A"
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_connection_with_an_incomplete_head_is_closed() -> None:
    async with bounded(HEADER_SECONDS=0.3) as (_, connect):
        for data in (b"", b"GET", HALF):
            reader, _ = await connect(data)
            assert await rest(reader) == b"", data
    async with bounded() as (http, connect):
        reader, writer = await connect(WHOLE)  # the second call of a connection
        await reader.readuntil(b"\r\n\r\n")
        kind_of_connections(http).head_s = 0.05
        writer.write(HALF)
        assert b"HTTP/1.1" not in await rest(reader)


async def test_a_head_that_drips_gets_no_more_time() -> None:
    async with bounded(HEADER_SECONDS=0.3) as (_, connect):
        reader, writer = await connect(HALF)
        async with dripping(writer):
            assert await rest(reader) == b""


async def test_a_head_above_its_size_is_refused() -> None:
    async with bounded() as (_, connect):
        reader, writer = await connect(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        for number in range(40):
            writer.write(b"X-%d: %s\r\n" % (number, b"a" * 1000))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


async def test_an_idle_connection_stays_open_for_its_own_time() -> None:
    async with bounded() as (http, connect):
        reader, writer = await connect(WHOLE)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await until(
            lambda: all(
                connection._late is None for connection in kind_of_connections(http).open_connections._open
            )
        )
        writer.write(WHOLE)
        async with asyncio.timeout(60):
            assert b"HTTP/1.1 200 " in await reader.readuntil(b"HTTP/1.1 200 ")


HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


async def test_a_body_that_is_not_sent_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bounded(max_calls=1) as (http, connect):
        reader, writer = await connect(HEAD.encode() + b"{")
        await until(lambda: http.metric("calls_running") == 1)
        assert (await http.plain.post(CHAT, json=ASKED)).status_code == 503
        with monkeypatch.context() as over:
            over.setattr(bounds, "body_time_s", lambda *_: 0.0)
            writer.write(b" ")  # makes the service compute the time for the rest
            line = await reader.readline()
        assert line.startswith(b"HTTP/1.1 408 ")
        assert (await http.plain.post(CHAT, json=ASKED)).status_code == 200


async def test_a_body_that_drips_does_not_keep_its_place() -> None:
    async with bounded(BODY_SECONDS=0.3) as (_, connect):
        reader, writer = await connect(HEAD.encode())
        async with dripping(writer), asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")


async def test_the_rest_of_a_refused_body_is_not_waited_for_long() -> None:
    async with bounded(HEADER_SECONDS=0.3) as (_, connect):
        reader, _ = await connect(HEAD.replace(": 100000", ": 99000000").encode() + b"{")
        assert (await rest(reader)).startswith(b"HTTP/1.1 413 ")


async def test_a_slow_body_above_the_rate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake clock, each part of 1024 bytes takes ten seconds."""
    clock = SimpleNamespace(monotonic=count(0.0, 10.0).__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr(middleware, "time", clock)
    async with bounded(BODY_RATE=100) as (http, _):

        async def body() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 1024
            yield b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}'

        reply = await http.plain.post(CHAT, content=body(), headers={"Content-Type": "application/json"})
        assert reply.status_code == 200


async def test_connections_without_a_call_give_way_to_new_ones() -> None:
    """The oldest idle connection is closed for a new one; one with a call is not."""
    async with bounded(CONNECTIONS=4) as (_, connect):
        busy, writer = await connect(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        writer.write(b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        idle = [(await connect(HALF))[0] for _ in range(3)]
        for _ in range(10):
            reader, _ = await connect(WHOLE)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        assert [await rest(reader) for reader in idle] == [b""] * 3
        writer.write(b"{}       ")
        assert (await busy.readuntil(b"\r\n")).startswith(b"HTTP/1.1 4")


async def test_foreign_host_names_are_refused() -> None:
    """After DNS rebinding, a foreign page calls with its own host name."""
    async with bounded() as (http, _):
        for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[::x]"):
            reply = await http.plain.get("/v1/models", headers={"Host": host})
            assert (reply.status_code, reply.json()["error"]["param"]) == (421, "Host"), host
            assert (await http.plain.get("/", headers={"Host": host})).status_code == 421
            assert (await http.plain.get("/metrics", headers={"Host": host})).status_code == 200
        for host in ("localhost:1", "127.0.0.1", "[::1]:8000", "LOCALHOST."):
            assert (await http.plain.get("/v1/models", headers={"Host": host})).status_code != 421, host
    async with bounded(allowed_hosts="api.example, *.inner.example") as (http, _):
        for host in ("api.example", "API.example:80", "a.b.inner.example"):
            assert (await http.plain.get("/v1/models", headers={"Host": host})).status_code != 421, host
        for host in ("inner.example", "xinner.example", "localhost"):
            assert (await http.plain.get("/v1/models", headers={"Host": host})).status_code == 421, host
