"""The client against gRPC servers that fail: no token of an answer is lost or doubled."""

import asyncio
import random
from dataclasses import replace

import grpc
import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.client import (
    AsyncClient,
    Patience,
    Piece,
    RequestFailedError,
    Retry,
    StreamLostError,
    make_request,
)
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.v1 import generation_pb2
from tests.support.network.fake_gateway import TEXT, TOKENS, FakeGateway, Turn, fake_gateways

Code = grpc.StatusCode
PATIENCE = Patience(patience_s=30.0, first_wait_s=0.01, longest_wait_s=0.1)
REQUEST = make_request("hi", chat=True, max_new_tokens=40, temperature=0.0, speculation="tree")
POINTS = [0, 1, 17, len(TOKENS) - 1, len(TOKENS)]
"""Number of replies before a fault; the last is a fault before the summary."""


def client_of(*gateways: FakeGateway, **options: object) -> AsyncClient:
    given = {"patience": PATIENCE, **options}
    return AsyncClient([gateway.address for gateway in gateways], **given)  # type: ignore[arg-type]


async def check_whole(client: AsyncClient) -> None:
    """Check that an answer is complete, and that its pieces have the right positions."""
    pieces: list[Piece] = []
    async with client.stream(REQUEST) as stream:
        async for piece in stream:
            assert piece.position == sum(len(piece.token_ids) for piece in pieces)
            pieces.append(piece)
    assert tuple(t for piece in pieces for t in piece.token_ids) == TOKENS
    assert "".join(piece.text for piece in pieces) == TEXT
    assert tuple(stream.answer.token_ids) == TOKENS
    assert stream.answer.summary.new_tokens == len(TOKENS)


FAULTS = {
    "stopped server": Turn(dies=True),
    "unavailable": Turn(code=Code.UNAVAILABLE),
    "cancelled by the server": Turn(code=Code.CANCELLED),
    "fenced": Turn(code=Code.ABORTED),
    "reset stream": Turn(code=Code.INTERNAL, details="Received RST_STREAM with error code 2"),
    "end without a summary": Turn(ends=True),
    "full queue": Turn(code=Code.RESOURCE_EXHAUSTED, hint_ms="5"),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_stream_continues_at_the_next_gateway(name: str, point: int) -> None:
    fault = replace(FAULTS[name], replies=point)
    async with fake_gateways([fault], []) as (first, second), client_of(first, second) as client:
        await check_whole(client)
    (before,), (after,) = first.calls, second.calls
    assert before.request_id == after.request_id != ""
    if point == 0:  # the gateway may have stored the request or not
        assert after == before
    else:
        assert after == generation_pb2.AttachRequest(request_id=before.request_id, from_token=point)


async def test_every_gateway_dies_again_and_again_and_comes_back() -> None:
    """One of two gateways is always stopped; each starts again when the other dies."""
    points = random.Random(7)
    ports = free_ports(2)
    gateways = [FakeGateway(size=2), FakeGateway(size=3)]
    for gateway, other, port in zip(gateways, gateways[::-1], reversed(ports), strict=True):
        gateway.script = [Turn(replies=points.randrange(3), dies=True) for _ in range(6)]
        gateway.on_death = lambda other=other, port=port: other.start(port)
    await gateways[0].start(ports[0])
    retries: list[Retry] = []
    addresses = [f"127.0.0.1:{port}" for port in ports]
    try:
        async with AsyncClient(addresses, patience=PATIENCE, on_retry=retries.append) as client:
            await check_whole(client)
    finally:
        for gateway in gateways:
            await gateway.stop()
    assert len(retries) >= 12
    assert {retry.failure.transient for retry in retries} == {True}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "turn",
    [
        Turn(code=Code.UNAUTHENTICATED, details="no key"),
        Turn(code=Code.INVALID_ARGUMENT, details="temperature = -1"),
        Turn(code=Code.NOT_FOUND, details="request"),
        Turn(code=Code.INTERNAL, details="a step failed"),
        Turn(code=Code.RESOURCE_EXHAUSTED, details="larger than the cache"),
        Turn(code=Code.UNAVAILABLE, details="the request has ended", hint_ms="-1"),
        Turn(raises=True),
    ],
    ids=lambda turn: turn.code.name if turn.code else "exception",
)
async def test_permanent_errors_are_not_retried(turn: Turn, point: int) -> None:
    fault = replace(turn, replies=point)
    async with fake_gateways([fault], []) as (first, second), client_of(first, second) as client:
        with pytest.raises(RequestFailedError, match=turn.details or "KeyError"):
            await client.generate(REQUEST)
    assert (len(first.calls), second.calls) == (1, [])


async def test_a_retry_hint_is_kept_to() -> None:
    """The gateway's hint replaces the client's backoff."""
    script = [Turn(replies=point, code=Code.UNAVAILABLE, hint_ms="30") for point in (0, 4)]
    retries: list[Retry] = []
    async with fake_gateways(script) as (gateway,), client_of(gateway, on_retry=retries.append) as client:
        await check_whole(client)
    assert [retry.wait_s for retry in retries] == [0.03, 0.03]


async def test_the_error_after_the_patience_shows_how_to_continue() -> None:
    script = [Turn(replies=3, dies=True)]
    short = Patience(patience_s=0.3, first_wait_s=0.05)
    async with fake_gateways(script) as (gateway,), client_of(gateway, patience=short) as client:
        with pytest.raises(StreamLostError, match=f"gateway at {gateway.address}") as caught:
            await client.generate(REQUEST)
        assert caught.value.from_token == 3
        await gateway.start(gateway.port)
        async with client_of(gateway) as patient:
            rest = await patient.attach(caught.value.request_id, caught.value.from_token).read()
    assert tuple(rest.token_ids) == TOKENS[3:]
    assert gateway.calls[-1].request_id == gateway.calls[0].request_id


async def test_an_answer_is_complete() -> None:
    async with fake_gateways([]) as (gateway,), client_of(gateway) as client:
        texts: list[str] = []
        answer = await client.generate(REQUEST, texts.append)
    assert (tuple(answer.token_ids), answer.text, "".join(texts)) == (TOKENS, TEXT, TEXT)
    assert (answer.finish_reason, answer.request_id) == ("length", gateway.calls[0].request_id)
    assert REQUEST.request_id == "", "the caller's message stays as it was"


async def test_cancel_and_status_ask_the_first_gateway_that_answers() -> None:
    async with fake_gateways([], []) as (first, second):
        await first.stop()
        async with client_of(first, second, api_key="secret") as client:
            assert (await client.status()).gateway_id == second.address
            await client.cancel("r1")
            await client.generate(REQUEST)
        assert second.cancelled == ["r1"]
        assert [row["authorization"] for row in second.metadata] == ["Bearer secret"] * 3
        await second.stop()
        async with client_of(first, second) as client:
            with pytest.raises(UnavailableError, match=f"gateway at {second.address}"):
                await client.status()


async def test_requests_begin_where_the_last_one_was_answered() -> None:
    retries: list[Retry] = []
    async with (
        fake_gateways([Turn(replies=2, dies=True)], []) as (first, second),
        client_of(first, second, on_retry=retries.append) as client,
    ):
        await check_whole(client)
        await check_whole(client)
    assert (len(first.calls), len(second.calls), len(retries)) == (1, 2, 1)


async def test_leaving_a_stream_ends_its_call_and_nothing_is_tried_again() -> None:
    async with fake_gateways([Turn(replies=4, hangs=True)]) as (gateway,), client_of(gateway) as client:
        task = asyncio.create_task(client.generate(REQUEST))
        await gateway.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(gateway.calls) == 1


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        AsyncClient("127.0.0.1:1", key)
    assert str(caught.value) == "api_key = '...': must be printable ASCII"


@pytest.mark.parametrize("addresses", ["", "a:1,,b:2", [], ["a:1", ""]])
def test_addresses_are_checked(addresses: str | list[str]) -> None:
    with pytest.raises(InvalidInputError, match="address = "):
        AsyncClient(addresses)


async def test_attach_takes_a_number_of_tokens() -> None:
    with pytest.raises(InvalidInputError, match="from_token = -1"):
        AsyncClient("a:1").attach("r", -1)
