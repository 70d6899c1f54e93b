"""Skeleton-of-thought through the services. The tiny model makes no sense, so what it means is set here."""

import asyncio
import random
import time
from typing import Any

import pytest

from specinfer import AsyncClient, Client
from specinfer.client import FinishReason, Patience, RequestFailedError, make_request, skeleton
from specinfer.client.skeleton import SkeletonOfThought
from specinfer.errors import InvalidInputError
from specinfer.v1 import generation_pb2
from tests.support.network.cutting_proxy import cutting_proxy
from tests.support.system import running_system, until

POINTS = ["one", "another", "last"]
PATIENCE = Patience(patience_s=30.0, first_wait_s=0.01, longest_wait_s=0.1)


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "fits", lambda _: True)
    monkeypatch.setattr(skeleton, "points", lambda _: POINTS)


@pytest.mark.usefixtures("fitting")
async def test_points_are_expanded_in_order_each_as_if_asked_alone(redis_url: str) -> None:
    """Through either client."""
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        found = await client.skeleton("hm?", max_new_tokens=12, request_id="mine").read()
        expected = []
        for index, point in enumerate(POINTS):
            alone = await client.generate(skeleton.expand("hm?", POINTS, index), max_new_tokens=4)
            expected.append(skeleton.heading(index, point) + alone.text)

        def blocking() -> tuple[str, int]:
            with Client(system.address) as client, client.skeleton("hm?", max_new_tokens=12) as stream:
                return "".join(piece.text for piece in stream), stream.answer.summary.points

        assert await asyncio.to_thread(blocking) == (found.text, 3)
    assert found.text == "".join(expected)
    assert len(set(expected)) == len(POINTS)
    assert found.request_id == "mine"
    assert found.summary.points == 3
    assert found.stats.lossy
    assert found.summary.new_tokens <= 12


@pytest.mark.usefixtures("fitting")
async def test_connections_that_break_at_any_byte_change_no_point(redis_url: str) -> None:
    numbers = random.Random(5)
    cuts = [numbers.randrange(20, 2500) for _ in range(8)]
    async with (
        running_system(redis_url, {}, linger_seconds=10.0) as system,
        AsyncClient(system.address) as undisturbed,
        cutting_proxy(system.address, cuts) as address,
        AsyncClient(address, patience=PATIENCE) as client,
    ):
        expected = await undisturbed.skeleton("hm?", max_new_tokens=60, ignore_eos=True).read()
        while cuts:
            found = await client.skeleton("hm?", max_new_tokens=60, ignore_eos=True).read()
            assert (found.text, found.summary.new_tokens) == (expected.text, 60)


async def test_what_naming_the_points_takes_is_part_of_the_answers_time(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    async def points(_: SkeletonOfThought) -> list[str]:
        started = time.monotonic()
        await asyncio.sleep(0.02)
        taken.append(time.monotonic() - started)
        return POINTS

    monkeypatch.setattr(SkeletonOfThought, "_points", points)
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        summary = (await client.skeleton("hm?", max_new_tokens=6).read()).summary
    assert taken[0] <= summary.ttft_seconds <= summary.total_seconds


@pytest.mark.usefixtures("fitting")
async def test_points_may_fill_the_context(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        found = await client.skeleton("hm?", max_new_tokens=0, ignore_eos=True).read()
    assert found.summary.new_tokens > 10 * len(POINTS)


async def test_a_question_that_does_not_fit_is_answered_as_usual(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        found = await client.skeleton("hm?", max_new_tokens=8).read()
        plain = await client.generate("hm?", max_new_tokens=8)
    assert (found.text, found.token_ids, found.summary.points) == (plain.text, plain.token_ids, 0)
    assert not found.stats.lossy


@pytest.mark.usefixtures("fitting")
async def test_a_caller_that_leaves_cancels_all_points(redis_url: str) -> None:
    """Though the gateway would keep requests whose clients may come back."""
    async with (
        running_system(redis_url, {}, linger_seconds=600.0) as system,
        AsyncClient(system.address) as client,
    ):
        scheduler = system.loop.scheduler
        async with client.skeleton("hm?", max_new_tokens=0, ignore_eos=True, request_id="r") as stream:
            await anext(stream)
            await until(lambda: scheduler.running == len(POINTS))
        await until(lambda: scheduler.running == scheduler.waiting == 0)
        for index in range(len(POINTS)):
            ended = await client.attach(f"r/point-{index + 1}").read()
            assert ended.finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("prompt", "options", "why"),
    [
        ("a", {"logprobs": True}, "logprobs = True: excluded by"),
        ("a", {"stop": "x"}, r"stop_strings = \['x'\]: excluded by"),
        ("a", {"regex": "x"}, "constraint = 'regex': excluded by"),
        ("a", {"chat": False}, "prompt = 'text': .* needs a conversation"),
        ([5, 6], {}, "prompt = 'tokens': .* needs a conversation"),
        ([{"role": "assistant", "content": "a"}], {}, "prompt = 'assistant': .* ends with a question"),
    ],
)
async def test_what_cannot_be_answered_in_points_is_refused(
    prompt: Any, options: dict[str, Any], why: str
) -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidInputError, match=why):
            client.skeleton(prompt, **options)
        message = make_request("a")
        message.chat.tools.append("{}")
        with pytest.raises(InvalidInputError, match=r"chat\.tools"):
            client.skeleton(message)


@pytest.mark.usefixtures("fitting")
async def test_what_the_gateway_refuses_of_points_is_refused_before_any_text(redis_url: str) -> None:
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        for options, why in (
            ({"deadline_seconds": -1.0}, "deadline_seconds = -1"),
            ({"temperature": -1.0}, "temperature = -1"),
            ({"max_new_tokens": -3}, "max_new_tokens = -3"),
        ):
            stream = client.skeleton("hm?", **options)  # type: ignore[arg-type]
            with pytest.raises(RequestFailedError, match=why):
                await stream.read()
            assert stream.answer.text == ""


async def test_gateways_ignore_the_field_with_which_clients_once_asked_for_it(redis_url: str) -> None:
    message = make_request("hm?", max_new_tokens=8)
    old = generation_pb2.GenerateRequest.FromString(message.SerializeToString() + b"\x78\x01")
    assert old != message
    async with running_system(redis_url, {}) as system, AsyncClient(system.address) as client:
        assert (await client.generate(old)).token_ids == (await client.generate(message)).token_ids
