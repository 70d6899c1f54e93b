"""API keys in real calls, and certificates made with the commands of docs/serving.md#security."""

import asyncio
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc

from gateway.api.callers import Callers
from specinfer.errors import SpecInferError
from specinfer.service.api_keys import make_key, write_keys
from specinfer.service.channel import open_channel
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2, generation_pb2_grpc
from specinfer.wire.status import abort

SECURITY = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text()


class Door(generation_pb2_grpc.GenerationServicer):
    """Service whose `Status` returns the caller's name, or refuses the call."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def Status(self, request: Any, context: Any) -> generation_pb2.StatusReply:
        try:
            caller = self._callers.identify(context.invocation_metadata())
        except SpecInferError as error:
            await abort(context, error)
        return generation_pb2.StatusReply(model=caller.name)


async def ask(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> str:
    """Return the caller's name, or the status code of the refusal."""
    stub = generation_pb2_grpc.GenerationStub(channel)
    try:
        reply = await stub.Status(generation_pb2.StatusRequest(), metadata=metadata, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return str(reply.model)


async def test_keys_in_real_calls(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    alice, key = make_key("alice")
    late, expired = make_key("late", expires=datetime.now(UTC) - timedelta(seconds=1))
    write_keys(file, [key, expired])
    server = ServiceServer(
        ServiceSettings(listen="127.0.0.1:0", drain_seconds=0), ["specinfer.v1.Generation"]
    )
    generation_pb2_grpc.add_GenerationServicer_to_server(Door(Callers.load(file)), server.grpc)
    async with open_channel(f"127.0.0.1:{await server.start()}") as channel:
        assert await ask(channel, ("authorization", f"Bearer {alice}")) == "alice"
        assert await ask(channel) == "UNAUTHENTICATED"
        assert await ask(channel, ("authorization", f"Bearer {late}")) == "UNAUTHENTICATED"
        assert await ask(channel, ("authorization", f"Bearer {alice[:-1]}")) == "UNAUTHENTICATED"
        write_keys(file, [expired])
        assert await ask(channel, ("authorization", f"Bearer {alice}")) == "UNAUTHENTICATED", "revoked"
    await server.stop()


async def test_the_certificates_of_the_documentation_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", SECURITY, re.DOTALL)
    (script,) = [block for block in blocks if "openssl req" in block]
    await asyncio.to_thread(subprocess.run, ["sh", "-e", "-c", script], cwd=tmp_path, check=True, timeout=60)
    settings = ServiceSettings(
        listen="127.0.0.1:0",
        drain_seconds=0,
        tls_certificate=str(tmp_path / "verifier.pem"),
        tls_key=str(tmp_path / "verifier.key"),
        tls_client_ca=str(tmp_path / "ca.pem"),
    )
    server = ServiceServer(settings, ["specinfer.v1.Generation"])
    generation_pb2_grpc.add_GenerationServicer_to_server(Door(Callers.load(None)), server.grpc)
    address = f"localhost:{await server.start()}"
    for name, answer in (("gateway", ""), ("speculator", "UNAVAILABLE")):
        tls = ClientTls(tmp_path / "ca.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        async with open_channel(address, tls) as channel:
            assert await ask(channel) == answer, name
    await server.stop()
