"""The embedded store answers as Redis does for a single gateway, and its file stores all of it."""

import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.api.callers import ANYBODY, Caller
from gateway.store.connection import RedisConnection
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import GatewayReport, Store, Written
from gateway.store.records import Known, Record
from gateway.store.redis import RedisStore
from specinfer.errors import SpecInferError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

ALICE, BOB = Caller("alice", max_concurrent=2), Caller("bob")


def shown(record: Record | None) -> Any:
    """Return a record's fields without its age."""
    if record is None:
        return None
    fields = asdict(record)
    del fields["age_s"]
    return fields


class Twins:
    """Make the same random calls to both stores, and compare the answers."""

    def __init__(self, redis: Store, embedded: EmbeddedStore, rng: random.Random) -> None:
        self.stores, self._rng = (redis, embedded), rng
        self.states: dict[str, RequestState] = {}
        self.callers: dict[str, Caller] = {}

    async def both(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        """Check that both stores give the same answer or error; return it."""
        answers = []
        for store in self.stores:
            try:
                answers.append(await call(store))
            except SpecInferError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    async def step(self) -> None:
        """Make a random call."""
        rng = self._rng
        name = rng.choice([*self.states, f"r{len(self.states)}-{secrets.token_hex(4)}"])
        often = [self.append] * 3
        rest = [
            self.create,
            self.cancel,
            self.leave,
            self.disown,
            self.adopt,
            self.discard,
            self.look,
            self.check,
        ]
        do = rng.choice([*often, *rest])
        await do(name)

    async def create(self, name: str) -> None:
        caller = self._rng.choice([ANYBODY, ALICE, BOB])
        key, owned = self._rng.choice(["one", "one", "two"]), self._rng.random() < 0.8
        requested = {"logprobs": True, "top_logprobs": 1} if self._rng.random() < 0.5 else {}
        request = GenerationRequest(
            name, (1, 2), 10, Sampling(temperature=0), caller=caller.name, **requested
        )
        if await self.both(lambda store: store.create(request, key, caller, owned)) is True:
            self.states[name] = RequestState(request, 0.0, 0, request.sampling, [1, 2])
            self.callers[name] = caller

    async def append(self, name: str) -> None:
        state = self.states.get(name)
        if state is None or state.finish is not None:
            return
        new = [self._rng.randrange(3, 90) for _ in range(self._rng.randrange(4))]
        start = len(state.tokens) - 2
        rows = [LogprobRow(-0.5 * token, ((token, -0.5 * token),)) for token in new]
        final = self._rng.random() < 0.2
        if final:
            state.finish = FinishReason.LENGTH
        named = replace(state, adoption=self._rng.choice([1, 1, 1, 2, 3]))
        progress = Progress(named, new, rows if state.request.logprobs else [], start, final)
        for _ in range(self._rng.choice([1, 2])):  # repeated, as if the first answer was lost
            (written,) = await self.both(lambda store: store.append([progress], [], "m"))
        if written in (Written.OK, Written.CANCEL):
            state.tokens += new
        else:
            state.finish = None

    async def cancel(self, name: str) -> None:
        caller = self._rng.choice([None, ANYBODY, ALICE, self.callers.get(name, BOB)])
        await self.both(lambda store: store.cancel(name, caller))

    async def leave(self, name: str) -> None:
        await self.both(lambda store: store.leave(name))

    async def disown(self, name: str) -> None:
        adoption = self._rng.choice([1, 1, 2, 3])
        await self.both(lambda store: store.disown({name: adoption}))

    async def adopt(self, name: str) -> None:
        models = self._rng.choice([[], ["m"], ["other"]])

        async def adopted(store: Store) -> Any:
            return sorted((r.request.request_id, r.adoption) for r in await store.adopt(100, models))

        await self.both(adopted)

    async def discard(self, name: str) -> None:
        if self._rng.random() < 0.3 and name in await self.stores[1].owned():
            adoption = self._rng.choice([1, 2])
            await self.both(lambda store: store.discard(name, adoption))
            if await self.stores[1].load(name) is None:
                self.states.pop(name, None)

    async def look(self, name: str) -> None:
        async def everything(store: Store) -> Any:
            caller = self.callers.get(name)
            top = self.states[name].request.top_logprobs if name in self.states else 0
            glimpse = await store.glimpse({name: Known(1, top)})
            return shown(await store.load(name, caller)), glimpse, sorted((await store.owned()).items())

        await self.both(everything)

    async def check(self, name: str) -> None:
        caller = self._rng.choice([ANYBODY, ALICE])
        await self.both(lambda store: store.check_quota(name, "one", caller))


@pytest.mark.parametrize("seed", range(12))
async def test_it_answers_as_redis_does_and_its_file_stores_everything(
    redis_url: str, seed: int, tmp_path: Path
) -> None:
    connection, me = RedisConnection.open(redis_url), secrets.token_hex(4)
    path = tmp_path / "store.sqlite"
    redis, embedded = RedisStore(connection, me, 60), EmbeddedStore(me, 60, path=path)
    await redis.renew(GatewayReport(me), [])
    twins = Twins(redis, embedded, random.Random(seed))
    for _ in range(150):
        await twins.step()
    names = list(twins.states)
    before = [shown(await embedded.load(name)) for name in names]
    await embedded.close()
    again = EmbeddedStore("next", 60, path=path)
    for name, known in zip(names, before, strict=True):
        actual = shown(await again.load(name))
        assert {**actual, "adoption": known["adoption"]} == known
    waiting = {name for name, known in zip(names, before, strict=True) if known["ending"] is None}
    assert {record.request.request_id for record in await again.adopt(1000, ["m"])} == waiting
    await again.close()
    for name in names:
        await redis.disown({name: (await redis.owned()).get(name, 0)})
        await redis.cancel(name, None) if name in waiting else None
    await connection.close()
