"""Adoption of waiting requests by gateways: its order, and its cost in Redis commands."""

import random
import secrets
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.api.callers import Caller
from gateway.store.keys import PREFIX, request_key
from specinfer.scheduling.entries import Progress
from tests.integration.stores.test_redis_store import Pair, connected, state_of

MODELS = ("m1", "m2", "m3")


class Waiting:
    """Reference model of the waiting requests."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[float, str, str]] = {}
        """Creation time, caller and model, by id."""

    def first(self, count: int, models: list[str]) -> list[str]:
        """Return the next `count` ids: callers take turns, each with its oldest request first."""
        fit = sorted(
            (came, caller, name)
            for name, (came, caller, model) in self.requests.items()
            if model in ("", *models)
        )
        turns: dict[str, int] = {}
        ranked = []
        for came, caller, name in fit:
            turns[caller] = turns.get(caller, 0) + 1
            ranked.append((turns[caller], came, name))
        return [name for _, _, name in sorted(ranked)[:count]]


@pytest.mark.parametrize("seed", range(12))
async def test_callers_are_adopted_in_turn_whatever_happened_before(redis_url: str, seed: int) -> None:
    draw, waiting = random.Random(seed), Waiting()
    async with connected(redis_url) as connection:
        stores = Pair(connection)
        owned: dict[str, tuple[float, str, str]] = {}
        for _ in range(60):
            what = draw.choice(["create", "create", "adopt", "give", "cancel", "begin"])
            if what == "create":
                state, caller = state_of([]), draw.choice(["a", "b", "c", ""])
                name = state.request.request_id
                await stores.a.create(state.request, "idempotency_key", Caller(caller), owned=False)
                came = float(await connection.redis.hget(request_key(name), "created"))
                waiting.requests[name] = (came, caller, "")
            elif what == "adopt":
                models, count = draw.sample(MODELS, draw.randrange(3)), draw.randrange(1, 6)
                expected = waiting.first(count, models)
                names = [record.request.request_id for record in await stores.b.adopt(count, models)]
                assert names == expected
                owned |= {name: waiting.requests.pop(name) for name in names}
            elif what == "give" and owned:
                name = draw.choice(sorted(owned))
                await stores.b.disown({name: (await stores.b.owned())[name]})
                waiting.requests[name] = owned.pop(name)
            elif what == "cancel" and waiting.requests:
                name = draw.choice(sorted(waiting.requests))
                await stores.a.cancel(name, None)
                del waiting.requests[name]
            elif what == "begin" and owned:
                name = draw.choice(sorted(owned))
                came, caller, model = owned[name]
                if not model:
                    model = draw.choice(MODELS)
                    state = state_of([5])
                    object.__setattr__(state.request, "request_id", name)
                    number = int(await connection.redis.hget(request_key(name), "adoption"))
                    await stores.b.append(
                        [Progress(replace(state, adoption=number), [5], [], 0, False)], [], model
                    )
                    owned[name] = (came, caller, model)
        everything = waiting.first(1000, list(MODELS))
        assert [
            record.request.request_id for record in await stores.a.adopt(1000, list(MODELS))
        ] == everything
        await _nothing_is_left(connection.redis)


async def _nothing_is_left(redis: Redis) -> None:
    keys = {key async for key in redis.scan_iter(f"{PREFIX}*")}
    left = [
        key for key in keys if key.removeprefix(PREFIX).split(":")[0] in ("waiting", "turns", "deadlines")
    ]
    assert left == []


async def _commands(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    reads = ("hmget", "hget", "zrange", "zscore", "zrangebyscore")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in reads)


@pytest.mark.parametrize("callers", [1, 50])
async def test_the_cost_of_adoption_does_not_grow_with_the_queue(redis_url: str, callers: int) -> None:
    async with connected(redis_url) as connection:
        stores, costs = Pair(connection), list[int]()
        for many in (100, 900):
            for number in range(many):
                caller = Caller(f"c{number % callers}")
                await stores.a.create(state_of([]).request, "idempotency_key", caller, owned=False)
            before = await _commands(connection.redis)
            await connection.run("adopt", stores.b.gateway_id, 4, "model")
            await stores.a.abandon(1000.0, "why")
            costs.append(await _commands(connection.redis) - before)
        assert costs[1] <= costs[0] + 8
        assert costs[1] < 100


async def test_requests_disowned_by_a_gateway_of_an_earlier_version_are_adopted(redis_url: str) -> None:
    """It writes only the list of all waiting requests."""
    async with connected(redis_url) as connection:
        stores, redis = Pair(connection), connection.redis
        given, taken = state_of([]).request, state_of([]).request
        for request in (given, taken):
            await stores.a.create(request, "idempotency_key", Caller(""), owned=False)
        for key in ("waiting::", "turns:", "deadlines"):
            await redis.delete(f"{PREFIX}{key}")
        await redis.zrem(f"{PREFIX}unowned", taken.request_id)
        await redis.hset(request_key(taken.request_id), "owner", secrets.token_hex(4))
        records: Any = await stores.b.adopt(10, [])
        assert [record.request.request_id for record in records] == [given.request_id]
        await _nothing_is_left(redis)
