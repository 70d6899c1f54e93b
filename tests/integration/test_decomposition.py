"""Skeleton-of-thought through the services. The tiny model makes no sense, so what it means is set here."""

import asyncio
import time

import grpc
import pytest

from gateway.decomposition import skeleton
from gateway.decomposition.expansion import SkeletonOfThought
from specinfer import AsyncClient
from specinfer.client.options import RequestOptions
from specinfer.v1 import common_pb2, generation_pb2
from tests.system import System, running_system

SKELETON = generation_pb2.DECOMPOSITION_SKELETON
POINTS = ["one", "another", "last"]


def question(**fields: object) -> generation_pb2.GenerateRequest:
    messages = [generation_pb2.ChatMessage(role="user", content="hm?")]
    chat = generation_pb2.ChatMessages(messages=messages)
    sampling = common_pb2.SamplingParams(temperature=0.0)
    return generation_pb2.GenerateRequest(chat=chat, decomposition=SKELETON, sampling=sampling, **fields)  # type: ignore[arg-type]


async def answer(
    system: System, message: generation_pb2.GenerateRequest
) -> tuple[str, generation_pb2.Summary]:
    replies = [reply async for reply in system.stub.Generate(message)]
    return "".join(reply.text for reply in replies), replies[-1].summary


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "fits", lambda _: True)
    monkeypatch.setattr(skeleton, "points", lambda _: POINTS)


@pytest.mark.usefixtures("fitting")
async def test_points_are_expanded_in_order_each_as_if_asked_alone(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system:
        text, summary = await answer(system, question(max_new_tokens=12, request_id="mine"))
        expected = []
        for index, point in enumerate(POINTS):
            alone = question(max_new_tokens=4)
            alone.ClearField("decomposition")
            alone.chat.messages[0].content = skeleton.expand("hm?", POINTS, index)
            expected.append(skeleton.heading(index, point) + (await answer(system, alone))[0])
    assert text == "".join(expected)
    assert len(set(expected)) == len(POINTS)
    assert summary.points == 3
    assert summary.stats.lossy
    assert summary.new_tokens <= 12


@pytest.mark.usefixtures("fitting")
async def test_the_python_client_reads_an_answer_in_parts(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        options: RequestOptions = {"decomposition": "skeleton", "max_new_tokens": 12, "temperature": 0.0}
        found = await client.generate([{"role": "user", "content": "hm?"}], **options)
        assert found.text == (await answer(system, question(max_new_tokens=12)))[0]
        assert found.summary.points == 3


async def test_what_naming_the_points_takes_is_part_of_the_answers_time(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    async def points(_: SkeletonOfThought) -> list[str]:
        started = time.monotonic()
        await asyncio.sleep(0.02)
        taken.append(time.monotonic() - started)
        return POINTS

    monkeypatch.setattr(SkeletonOfThought, "points", points)
    async with running_system(redis_url, {}) as system:
        _, summary = await answer(system, question(max_new_tokens=6))
    assert taken[0] <= summary.ttft_seconds <= summary.total_seconds


@pytest.mark.usefixtures("fitting")
async def test_points_may_fill_the_context(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system:
        _, summary = await answer(system, question(max_new_tokens=0, ignore_eos=True))
    assert summary.new_tokens > 10 * len(POINTS)


async def test_a_question_that_does_not_fit_is_answered_as_usual(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system:
        text, summary = await answer(system, question(max_new_tokens=8))
        plain = question(max_new_tokens=8)
        plain.ClearField("decomposition")
        assert (text, summary.points) == ((await answer(system, plain))[0], 0)
        assert not summary.stats.lossy


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"logprobs": True}, "skeleton excludes logprobs"),
        ({"stop_strings": ["x"]}, "skeleton excludes stop_strings"),
        ({"text": "a"}, "needs a conversation"),
        ({"decomposition": 7}, "decomposition = 7: unknown"),
        ({"deadline_seconds": -1.0}, "deadline_seconds = -1"),
    ],
)
async def test_what_cannot_be_decomposed_is_refused(
    redis_url: str, change: dict[str, object], why: str
) -> None:
    async with running_system(redis_url, {}) as system:
        message = question(max_new_tokens=8)
        message.MergeFrom(generation_pb2.GenerateRequest(**change))  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError, match=why) as caught:
            await answer(system, message)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
