"""Requests and cancellations in every store: on Redis, in memory, and in a file."""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.api.callers import ANYBODY, Caller
from gateway.store.connection import RedisConnection
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import GatewayReport, Store, Written
from gateway.store.records import Glimpse, Known, Record
from gateway.store.redis import RedisStore
from specinfer.errors import AlreadyExistsError, ExhaustedError, NotFoundError
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import RequestState
from tests.integration.stores.test_redis_store import ALICE, finished, rows, state_of

KEY = "idempotency_key"


@dataclass(frozen=True)
class Alone:
    """Store and leases of a single gateway."""

    store: Store
    reopened: Callable[[], Store]
    """Return the store as another reader has it; with a file, as a new process opens it."""

    async def begin(self, state: RequestState, caller: Caller = ANYBODY) -> str:
        await self.store.create(state.request, KEY, caller, owned=True)
        return state.request.request_id

    async def append(
        self, state: RequestState, new: list[int], start: int, adoption: int = 1, model: str = "model"
    ) -> Written:
        """Append tokens of a request; they are the last ones if it has finished."""
        probabilities = rows(*(-0.5 * token for token in new)) if state.request.logprobs else []
        named = replace(state, adoption=adoption)
        progress = Progress(named, new, probabilities, start, state.finish is not None)
        (written,) = await self.store.append([progress], [], model)
        return written

    async def record(self, name: str) -> Record:
        record = await self.reopened().load(name)
        assert record is not None
        return record

    async def cancels(self) -> list[str]:
        """Renew the lease; return the requests to cancel."""
        return list((await self.store.renew(GatewayReport(self.store.gateway_id), [])).cancels)


@pytest.fixture(params=["redis", "memory", "file"])
async def alone(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Alone]:
    me = secrets.token_hex(4)
    if request.param == "redis":
        connection = RedisConnection.open(request.getfixturevalue("redis_url"))
        store = RedisStore(connection, me, 60)
        await store.renew(GatewayReport(me), [])  # makes the gateway alive
        yield Alone(store, lambda: RedisStore(connection, "another", 60))
        await store.close()
        return
    path = tmp_path / "store.sqlite" if request.param == "file" else None
    opened = [EmbeddedStore(me, 60, path=path)]

    def reopened() -> Store:
        if path is not None:
            opened[-1].database.close()  # as at the end of its process
            opened.append(EmbeddedStore("next", 60, path=path))
        return opened[-1]

    yield Alone(opened[0], reopened)
    await opened[-1].close()


async def test_tokens_accumulate_and_a_repeated_append_does_not_double_them(alone: Alone) -> None:
    state = state_of([5, 6], logprobs=True)
    name = await alone.begin(state)
    await alone.append(state, [5, 6], 0)
    state.tokens += [7]
    for _ in range(2):  # the reply to the first attempt was lost
        await alone.append(state, [7], 2)
    assert await alone.store.load("another") is None
    for _ in range(2):
        assert await alone.append(finished(state), [], 3) is Written.OK
    assert name not in await alone.store.owned()
    record = await alone.record(name)
    assert (record.tokens, record.logprobs) == ([5, 6, 7], rows(-2.5, -3.0, -3.5))
    assert record.ending is not None
    assert (record.ending.finish, record.ending.new_tokens) == (FinishReason.LENGTH, 3)


async def test_new_rows_of_a_request_with_top_logprobs_have_its_width(alone: Alone) -> None:
    tops = [LogprobRow(-0.5, ((5, -0.5), (7, -1.5))), LogprobRow(-2.5, ((8, -0.25), (6, -2.5)))]
    state = state_of([5, 6], logprobs=True, top_logprobs=2)
    name = await alone.begin(state)
    for place, row in enumerate(tops):
        progress = Progress(state, [5 + place], [row], place, False)
        assert await alone.store.append([progress], [], "model") == [Written.OK]
    reader = alone.reopened()
    assert (await reader.glimpse({name: Known(1, 2)}))[name] == Glimpse([6], tops[1:], None)
    record = await reader.load(name)
    assert record is not None
    assert record.logprobs == tops


async def test_an_id_belongs_to_its_content_until_it_is_discarded(alone: Alone) -> None:
    store, request = alone.store, state_of([]).request
    assert await store.create(request, KEY, ANYBODY, owned=True)
    assert not await store.create(request, KEY, ANYBODY, owned=True), "the same request exists"
    with pytest.raises(AlreadyExistsError, match=request.request_id):
        await store.create(request, "another key", ANYBODY, owned=True)
    await store.discard(request.request_id)
    assert await store.create(request, "another key", ANYBODY, owned=True)


async def test_a_write_of_an_earlier_adoption_is_refused(alone: Alone) -> None:
    """This holds even for the same gateway, which has lost the request and owns it again."""
    state = state_of([5])
    name = await alone.begin(state)
    for adoption in (1, 2):
        await alone.store.disown({name: adoption})
        assert len(await alone.store.adopt(10, [])) == 1
    assert await alone.append(state, [5], 0, adoption=1) is Written.FENCED
    assert await alone.append(state, [5], 0, adoption=3) is Written.OK


async def test_each_item_of_a_write_has_its_own_outcome(alone: Alone) -> None:
    """Items of a dropped and of the present adoption of one request may meet in one write."""
    dropped, other = state_of([5]), state_of([7])
    name, written = await alone.begin(dropped), [5, 6, 7]
    await alone.begin(other)
    await alone.append(dropped, written, 0)
    await alone.store.disown({name: 1})
    assert len(await alone.store.adopt(10, ["model"])) == 1
    present = replace(dropped, adoption=2)
    items = [
        Progress(dropped, [99], [], 4, False),  # the step after one that was refused
        Progress(present, [8, 9], [], 3, False),
        Progress(dropped, [98], [], 3, False),
        Progress(present, [10], [], 5, False),
        Progress(other, [7], [], 0, False),
        Progress(present, [11], [], 7, False),
    ]
    fenced, ok, lost = Written.FENCED, Written.OK, Written.LOST
    assert await alone.store.append(items, [], "model") == [fenced, ok, fenced, ok, ok, lost]
    assert (await alone.record(name)).tokens == [5, 6, 7, 8, 9, 10]


async def test_a_later_adoption_is_neither_disowned_nor_discarded_by_an_earlier_one(alone: Alone) -> None:
    name, store = await alone.begin(state_of([5])), alone.store
    await store.disown({name: 1})
    assert len(await store.adopt(10, [])) == 1
    await store.disown({name: 1})
    await store.discard(name, 1)
    assert await store.owned() == {name: 2}
    assert await store.adopt(10, []) == [], "it has an owner"
    await store.disown({name: 2})
    assert len(await store.adopt(10, [])) == 1


async def test_model_and_drawing_are_fixed_with_the_first_tokens(alone: Alone) -> None:
    """Model and `drawn_for` can change until the first tokens are stored, and not later."""
    state, store = state_of([5]), alone.store
    name = await alone.begin(state)
    await store.disown({name: 1})
    (record,) = await store.adopt(10, ["another model"])
    assert (record.drawn_for, record.model) == (None, "")
    for drawn, model in ((True, "another model"), (False, "a third")):
        state.drawn_for = drawn
        assert await alone.append(state, [5], 0, adoption=2, model=model) is Written.OK
    await store.disown({name: 2})
    assert await store.adopt(10, ["model"]) == []
    (record,) = await store.adopt(10, ["another model"])
    assert (record.drawn_for, record.model) == (True, "another model")


async def test_a_cancellation_is_sent_with_renewals_until_the_request_ends(alone: Alone) -> None:
    state = state_of([5])
    name = await alone.begin(state)
    with pytest.raises(NotFoundError, match="nobody"):
        await alone.store.cancel("nobody", None)
    assert await alone.cancels() == []
    await alone.store.cancel(name, ANYBODY)
    assert await alone.cancels() == [name]
    assert await alone.append(state, [5], 0) is Written.CANCEL
    await alone.append(finished(state), [], 1)
    assert await alone.cancels() == []
    with pytest.raises(NotFoundError, match=name):
        await alone.store.cancel(name, ANYBODY)


async def test_requests_are_seen_and_cancelled_by_their_caller_only(alone: Alone) -> None:
    name = await alone.begin(state_of([], caller="alice"), ALICE)
    for stranger in (ANYBODY, Caller("bob")):
        assert await alone.store.load(name, stranger) is None
        with pytest.raises(NotFoundError):
            await alone.store.cancel(name, stranger)
    assert await alone.reopened().load(name, ALICE) is not None


async def test_waiting_requests_can_fill_a_store(alone: Alone) -> None:
    alone.store._max_unowned = 1
    await alone.store.create(state_of([]).request, KEY, ANYBODY, owned=False)
    with pytest.raises(ExhaustedError, match="queue full"):
        await alone.store.create(state_of([]).request, KEY, ANYBODY, owned=False)
    assert await alone.store.create(state_of([]).request, KEY, ANYBODY, owned=True)
