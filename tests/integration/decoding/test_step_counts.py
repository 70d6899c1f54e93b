"""Number of messages and Redis commands of plain steps.

A grant of several steps needs one exchange with the verifier, at most one write, and at most one message to each
client. Exchanges at short intervals share writes and messages to clients.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.session import persist, token_stream
from specinfer.service.stream import WireMeter
from tests.support.oracle import greedy
from tests.support.system import System, running_system

PROMPTS = [[5, 6, 7], [9, 8, 7], [11, 5, 9], [6, 6, 30]]
TOKENS = 60


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of messages that the gateway sends and receives, by type."""
    seen = Counter[str]()
    serializer, deserializer = WireMeter.serializer, WireMeter.deserializer

    def counted_serializer(self: WireMeter, serialize: Any) -> Callable[[Any], Any]:
        inner = serializer(self, serialize)
        return lambda message: (seen.update([type(message).__name__]), inner(message))[1]

    def counted_deserializer(self: WireMeter, parse: Any) -> Callable[[Any], Any]:
        inner = deserializer(self, parse)

        def counted(data: Any) -> Any:
            message = inner(data)
            seen.update([type(message).__name__])
            return message

        return counted

    monkeypatch.setattr(WireMeter, "serializer", counted_serializer)
    monkeypatch.setattr(WireMeter, "deserializer", counted_deserializer)
    return seen


async def commands(redis_url: str) -> Counter[str]:
    async with Redis.from_url(redis_url) as redis:
        stats = await redis.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()})


@contextmanager
def counted_writes(system: System) -> Iterator[list[int]]:
    """Yield a list that gets the number of items of each write; check that writes do not overlap."""
    append, rows, under_way = system.store.append, list[int](), [0]

    async def counted(progress: Any, *arguments: Any) -> Any:
        assert not under_way[0], "a second write while one is under way"
        rows.append(len(progress))
        under_way[0] += 1
        try:
            return await append(progress, *arguments)
        finally:
            under_way[0] -= 1

    system.store.append = counted  # type: ignore[method-assign]
    yield rows


@pytest.mark.parametrize("batch", [1, 4])
async def test_a_plain_step_is_one_exchange_and_at_most_one_write(
    redis_url: str, messages: Counter[str], batch: int
) -> None:
    async with running_system(redis_url) as system:
        with counted_writes(system) as rows:
            before = await commands(redis_url)
            prompts = PROMPTS[:batch]
            texts = await asyncio.gather(*(system.generate(p, max_new_tokens=TOKENS) for p in prompts))
            used = await commands(redis_url) - before
        steps = system.gateway.observer.totals.steps
    assert [[t for r in text for t in r.token_ids] for text in texts] == [greedy(p, TOKENS) for p in prompts]
    assert TOKENS <= steps <= batch * TOKENS
    exchanges = messages["VerifyRequest"]
    assert messages["VerifyReply"] == exchanges <= steps
    assert messages["DraftRequest"] == 0
    replies = [len(text) for text in texts]
    assert messages["GenerateReply"] == sum(replies)
    assert len(rows) <= exchanges + batch, (
        "one write for each exchange, and for each request that ends between exchanges"
    )
    assert sum(rows) <= batch * TOKENS + batch
    assert max(replies) <= 1 + len(rows), (
        "a client gets the accepting message, and at most one for each write"
    )
    assert used["setrange"] <= min(sum(rows), batch * len(rows)), "one for each request of a write"
    assert used["strlen"] == used["setrange"]


async def test_fast_steps_share_a_delivery_but_first_tokens_and_ends_do_not_wait(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries are an hour apart, except those that do not wait."""
    monkeypatch.setattr(persist, "_APART_S", 3600.0)
    async with running_system(redis_url) as system:
        with counted_writes(system) as rows:
            replies = await system.generate(PROMPTS[0], max_new_tokens=TOKENS)
    accepted, first, *rest = [len(reply.token_ids) for reply in replies]
    assert (accepted, first, sum(rest)) == (0, 1, TOKENS - 1)
    assert {*rest[:-1]} == {token_stream._CHUNK}, "the rest comes at once, in chunks that a reader can store"
    assert [token for reply in replies for token in reply.token_ids] == greedy(PROMPTS[0], TOKENS)
    assert len(rows) == 2
