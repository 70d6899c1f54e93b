"""Requests that are cancelled, or whose client hangs up, end and free their resources."""

import asyncio

import grpc
import pytest

from specinfer.statuses import FinishReason
from specinfer.v1 import generation_pb2
from speculator_svc.clients import request_id_of
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41]


async def test_a_client_that_hangs_up_is_cancelled_at_the_next_iteration(redis_url: str) -> None:
    drafter = ScriptedDrafter(first(1))
    async with running_system(redis_url, {"a": drafter}) as system:
        request = request_for(PROMPT, max_new_tokens=400)
        call = system.stub.Generate(request)
        await call.read()
        call.cancel()
        await until(lambda: system.loop.scheduler.running == 0)
        await until(
            lambda: [request_id_of(released) for released in drafter.released] == [request.request_id]
        )
        await until(lambda: system.verifier.cached_requests == 0)
        record = await system.ended(request.request_id)
        assert len(record.tokens) < 400
        assert record.ending is not None
        assert record.ending.finish is FinishReason.CANCELLED


async def test_a_client_may_hang_up_just_when_its_request_has_ended(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last tokens are being stored; there is nothing to cancel."""
    async with running_system(redis_url) as system:
        stored, append = asyncio.Event(), system.store.append

        async def slow_append(*arguments: object) -> object:
            await stored.wait()
            return await append(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(system.store, "append", slow_append)
        call = system.stub.Generate(request_for(PROMPT, max_new_tokens=1))
        try:
            await until(lambda: system.loop.steps > 0 and system.loop.scheduler.running == 0)
            call.cancel()
            await until(
                lambda: (
                    not any(
                        token_stream.readers
                        for token_stream in system.gateway.token_streams._token_streams.values()
                    )
                )
            )
            requests = system.gateway.servicer._requests
            await until(lambda: not requests._lingering and not requests._tasks)
        finally:
            stored.set()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_cancel_ends_the_stream_with_a_summary(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        request = request_for(PROMPT, max_new_tokens=400)
        call = system.stub.Generate(request)
        replies = [await call.read()]
        await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request.request_id))
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)
    assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
    tokens = [t for r in replies for t in r.token_ids]
    assert tokens == greedy(PROMPT, 400)[: len(tokens)]


async def test_a_waiting_request_can_be_cancelled(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=1) as system:
        release = system.hold()
        running = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=60))
        await until(lambda: system.loop.scheduler.running == 1)
        request = request_for(PROMPT)
        waiting = asyncio.create_task(_collect(system.stub.Generate(request)))
        await until(lambda: system.loop.scheduler.waiting == 1)
        await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request.request_id))
        release.set()
        accepted, last = await waiting
        assert (accepted.prompt_tokens, accepted.token_ids) == (len(PROMPT), [])
        assert last.summary.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
        assert await running == greedy(PROMPT, 60)


async def _collect(call: object) -> list[generation_pb2.GenerateReply]:
    return [reply async for reply in call]  # type: ignore[attr-defined]
