"""Channels to services in this process behave like gRPC over a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from specinfer.errors import ExhaustedError, UnavailableError
from specinfer.service.channel import check_target, open_channel
from specinfer.service.in_process import InProcessServer
from specinfer.service.stream import MessageStream
from specinfer.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from specinfer.wire.status import abort
from tests.support.system import until

Reply = generation_pb2.GenerateReply
Code = grpc.StatusCode


class Generation(generation_pb2_grpc.GenerationServicer):
    """Answers depending on the request id; counts cancelled calls."""

    def __init__(self) -> None:
        self.cancelled = self.written = 0
        self.metadata: Any = None

    async def Generate(self, message: Any, context: Any) -> None:
        self.metadata = dict(context.invocation_metadata())
        try:
            for position in range(5):
                if message.request_id == "refused" and position == 2:
                    await abort(context, ExhaustedError("no room", retry_after_s=2.0))
                if message.request_id == "broken" and position == 2:
                    raise ValueError("a fault of ours")
                await context.write(Reply(position=position))
                self.written += 1
                if message.request_id == "slow":
                    await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def Watch(self, message: Any, context: Any) -> AsyncIterator[Any]:
        for _ in range(3):
            yield generation_pb2.WatchReply(request_id=message.request_id)

    async def Cancel(self, message: Any, context: Any) -> Any:
        if message.request_id == "slow":
            await asyncio.sleep(3600)
        if message.request_id == "refused":
            await abort(context, UnavailableError("it ends"))
        if message.request_id == "broken":
            raise ValueError("a fault of ours")
        return generation_pb2.CancelReply()


class Verifier(verifier_pb2_grpc.VerifierServicer):
    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            if request.step_id == 13:
                raise ValueError("a fault of ours")
            yield verifier_pb2.VerifyReply(step_id=2 * request.step_id)


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[tuple[Generation, Any]]:
    """Yield the servicer and a channel to it, in this process or over a socket."""
    generation = Generation()
    if kind == "socket":
        server: Any = grpc.aio.server()
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        server, address = InProcessServer("test"), "in-process:test"
    generation_pb2_grpc.add_GenerationServicer_to_server(generation, server)  # type: ignore[no-untyped-call]
    verifier_pb2_grpc.add_VerifierServicer_to_server(Verifier(), server)  # type: ignore[no-untyped-call]
    if kind == "socket":
        await server.start()
    channel = open_channel(address)
    try:
        yield generation, channel
    finally:
        await channel.close()
        await server.stop(0) if kind == "socket" else server.close()


def stub_of(channel: Any) -> Any:
    return generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]


def request_of(name: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(request_id=name)


async def read_all(call: Any) -> tuple[list[int], Any]:
    """Return the positions of the replies, and the error that ended the call, if any."""
    messages = []
    try:
        while (reply := await call.read()) is not grpc.aio.EOF:
            messages.append(reply.position)
    except grpc.aio.AioRpcError as error:
        return messages, (error.code(), error.details(), dict(error.trailing_metadata()))
    return messages, None


KINDS = pytest.mark.parametrize("kind", ["in process", "socket"])


@KINDS
async def test_streams_give_all_replies_and_then_their_end(kind: str) -> None:
    async with served(kind) as (generation, channel):
        stub = stub_of(channel)
        calls = [stub.Generate(request_of("r"), metadata=(("authorization", "Bearer x"),)) for _ in range(3)]
        assert [await read_all(call) for call in calls] == [([0, 1, 2, 3, 4], None)] * 3
        assert generation.metadata["authorization"] == "Bearer x"
        replies = stub.Watch(generation_pb2.WatchRequest(request_id="w"))
        assert [(await replies.read()).request_id for _ in range(3)] == ["w"] * 3
        assert await replies.read() is grpc.aio.EOF
        assert await replies.read() is grpc.aio.EOF


@KINDS
async def test_an_exception_of_a_method_comes_after_its_replies(kind: str) -> None:
    async with served(kind) as (_, channel):
        stub = stub_of(channel)
        messages, ended = await read_all(stub.Generate(request_of("refused")))
        assert messages == [0, 1]
        code, details, metadata = ended
        assert (code, details, metadata["grpc-retry-pushback-ms"]) == (
            Code.RESOURCE_EXHAUSTED,
            "no room",
            "2000",
        )
        messages, ended = await read_all(stub.Generate(request_of("broken")))
        assert (messages, ended[0]) == ([0, 1], Code.UNKNOWN)
        assert "a fault of ours" in ended[1]


@KINDS
async def test_calls_with_one_reply(kind: str) -> None:
    async with served(kind) as (_, channel):
        stub = stub_of(channel)
        cancel = {
            name: generation_pb2.CancelRequest(request_id=name) for name in ("r", "refused", "broken", "slow")
        }
        assert isinstance(await stub.Cancel(cancel["r"], timeout=60.0), generation_pb2.CancelReply)
        for name, code in (("refused", Code.UNAVAILABLE), ("broken", Code.UNKNOWN)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Cancel(cancel[name], timeout=60.0)
            assert refused.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stub.Cancel(cancel["slow"], timeout=0.05)
        assert late.value.code() is Code.DEADLINE_EXCEEDED


@KINDS
async def test_a_cancelled_call_cancels_its_method(kind: str) -> None:
    async with served(kind) as (generation, channel):
        call = stub_of(channel).Generate(request_of("slow"))
        assert (await call.read()).position == 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await until(lambda: generation.cancelled == 1)


async def test_a_slow_reader_slows_its_method_down() -> None:
    async with served("in process") as (generation, channel):
        call = stub_of(channel).Generate(request_of("r"))
        await call.read()
        for _ in range(1000):
            await asyncio.sleep(0)  # chances to write
        assert generation.written <= 2
        call.cancel()


async def test_an_answer_that_ended_unread_leaves_no_task() -> None:
    """A task that waited for an absent reader would be logged as an error when it is deleted."""
    async with served("in process") as (_, channel):
        call = stub_of(channel).Generate(request_of("r"))
        assert [(await call.read()).position for _ in range(4)] == [0, 1, 2, 3]
        await until(lambda: bool(call.task.done()))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert await read_all(call) == ([4], None)
        assert await call.read() is grpc.aio.EOF


@KINDS
async def test_message_streams_open_again_after_a_fault(kind: str) -> None:
    async with served(kind) as (_, channel):
        stub = verifier_pb2_grpc.VerifierStub(channel)  # type: ignore[no-untyped-call]
        stream: MessageStream[Any, Any] = MessageStream("verifier", lambda: stub.Verify())
        for step in (1, 2, 13, 3, 13, 13, 4):
            request = verifier_pb2.VerifyRequest(step_id=step)
            if step == 13:
                with pytest.raises(UnavailableError, match=r"verifier: .*a fault of ours"):
                    await stream.exchange(request, 60.0)
                continue
            assert (await stream.exchange(request, 60.0)).step_id == 2 * step
        stream.reset()


async def test_a_missing_service_is_unavailable() -> None:
    channel = open_channel(check_target("gateways", "in-process:nobody"))
    with pytest.raises(grpc.aio.AioRpcError) as absent:
        await stub_of(channel).Cancel(generation_pb2.CancelRequest(), timeout=60.0)
    assert absent.value.code() is Code.UNAVAILABLE
    _, ended = await read_all(stub_of(channel).Generate(request_of("r")))
    assert ended[:2] == (Code.UNAVAILABLE, "no service nobody in this process")


async def test_closing_a_channel_cancels_its_calls() -> None:
    async with served("in process") as (_, channel):
        call = stub_of(channel).Generate(request_of("slow"))
        await call.read()
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
