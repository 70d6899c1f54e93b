"""Nothing of a dropped run reaches the store or a client, whatever was queued or on its way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.api.callers import ANYBODY
from gateway.api.watch.watches import Watches
from gateway.events import Count
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.observer import Observer
from gateway.session import persist
from gateway.session.persist import Persistence
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import Written
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.scheduler import Scheduler

REQUEST = GenerationRequest("r", (5, 6, 7), 100, GREEDY)
TEXT = list(range(10, 60))
"""The right text of the request."""
WRONG = 9
"""A token that only a dropped run computes."""


class Session:
    """A session's persistence with the embedded store; the test is its loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.streams = EmbeddedStore("g", 60), TokenStreams()
        self.registry = CollectorRegistry()
        self.observer = Observer(GatewayMetrics(self.registry))
        self.scheduler = Scheduler(SchedulerLimits(8, 8, 10_000), NodeBudget(8, 64))
        self.released: list[str] = []
        self.persistence = Persistence(
            *(self.scheduler, self.store, self.streams, self.observer, [], Watches()),
            lambda step: None,
            self.released.extend,
        )
        self.gate = asyncio.Event()
        """Writes are executed once this is set."""
        self.gate.set()
        append = self.store.append

        async def gated(progress: Sequence[Progress], *rest: Any) -> list[Written]:
            await self.gate.wait()
            return await append(progress, *rest)

        monkeypatch.setattr(self.store, "append", gated)
        monkeypatch.setattr(persist, "_APART_S", 0.0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        assert await self.store.create(REQUEST, "key", ANYBODY, owned=True)
        delivering = asyncio.create_task(self.persistence.run())
        yield
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)

    def submit(self, adoption: int, generated: Sequence[int]) -> RequestState:
        stream = self.streams.add(TokenStream(REQUEST, "key"))
        stream.readers = 1
        stream.extend(0, generated, [], None)
        state = self.scheduler.submit(REQUEST, 0.0, generated=generated, adoption=adoption)
        self.persistence.open(state, stream)
        return state

    async def compute(self, state: RequestState, tokens: Sequence[int], final: bool = False) -> None:
        start = state.new_tokens
        state.tokens += tokens
        if final:
            self.scheduler.fail([state], "ended by the test", 0.0)
        await self.persistence.put([Progress(state, list(tokens), [], start, final)])

    async def adopt_again(self) -> RequestState:
        """The lease had ended, and this gateway adopts its own request."""
        await self.store.disown(await self.store.owned())
        (record,) = await self.store.adopt(8, [""])
        self.persistence.release_requests(["r"])
        return self.submit(record.adoption, record.tokens)

    def counted(self, count: Count) -> float | None:
        return self.registry.get_sample_value(f"specinfer_{count.value[0]}_total")

    @property
    def shown(self) -> list[int]:
        stream = self.streams.get("r")
        assert stream is not None
        return stream.tokens

    async def delivered(self) -> None:
        """Let all deliveries happen."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture(name="session")
def session_fixture(monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(monkeypatch)


@pytest.mark.parametrize("final", [False, True])
async def test_steps_of_a_dropped_run_are_not_shown_in_place_of_its_successors(
    session: Session, final: bool
) -> None:
    """A write is on its way, the next step is queued, and the lease ends between the two."""
    async with session.running():
        old = session.submit(1, [])
        await session.compute(old, TEXT[:34])
        await session.delivered()
        session.gate.clear()
        await session.compute(old, [WRONG])
        await session.delivered()
        await session.compute(old, [WRONG, WRONG], final)
        new = await session.adopt_again()
        await session.compute(new, TEXT[34:37])
        session.gate.set()
        await session.delivered()
        await session.compute(new, TEXT[37:40])
        await session.delivered()
        record = await session.store.load("r")
        assert record is not None
        assert session.shown == record.tokens == TEXT[:40]
        assert record.ending is None
        assert "r" in session.persistence
        assert session.scheduler.states["r"] is new


async def test_a_late_refusal_of_a_dropped_run_does_not_drop_its_successor(session: Session) -> None:
    async with session.running():
        old = session.submit(1, [])
        session.gate.clear()
        await session.compute(old, [WRONG])
        await session.delivered()
        new = await session.adopt_again()
        session.gate.set()
        await session.delivered()
        assert session.scheduler.states["r"] is new
        assert session.counted(Count.FENCED_REQUESTS) == 0, "it was dropped before"


async def test_a_write_that_fails_ends_only_the_run_that_made_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session.running():
        old = session.submit(1, [])
        going_on = asyncio.Event()

        async def failing(*_: Any) -> list[Written]:
            await going_on.wait()
            raise RuntimeError("an internal fault")

        with monkeypatch.context() as patch:
            patch.setattr(session.store, "append", failing)
            await session.compute(old, [WRONG])
            await session.delivered()
            new = await session.adopt_again()
            going_on.set()
            await session.delivered()
        await session.compute(new, TEXT[:3])
        await session.delivered()
        assert session.shown == TEXT[:3]
        assert new.finish is None


async def test_a_run_that_is_dropped_while_the_queue_is_full_adds_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "_MAX_WAITING", 2)
    async with session.running():
        old = session.submit(1, [])
        session.gate.clear()
        await session.compute(old, [WRONG])
        await session.delivered()
        await session.compute(old, [WRONG])
        waits = asyncio.create_task(session.compute(old, [WRONG]))
        await session.delivered()
        assert not waits.done()
        new = await session.adopt_again()
        session.gate.set()
        await waits
        await session.compute(old, [WRONG])
        await session.compute(new, TEXT[:2])
        await session.delivered()
        assert session.shown == TEXT[:2]


def test_a_stream_refuses_tokens_after_a_gap_until_it_has_the_earlier_ones() -> None:
    stream = TokenStream(REQUEST, "key")
    stream.readers = 1
    assert stream.extend(0, TEXT[:3], [], None)
    assert not stream.extend(4, TEXT[4:6], [], None)
    assert (stream.tokens, stream.behind, stream.followed) == (TEXT[:3], True, True)
    assert stream.extend(2, TEXT[2:6], [], None)
    assert (stream.tokens, stream.behind) == (TEXT[:6], False)


async def test_a_gap_is_counted_and_the_stream_then_read_from_the_store(session: Session) -> None:
    async with session.running():
        state = session.submit(1, [])
        await session.compute(state, TEXT[:3])
        await session.delivered()
        stream = session.streams.get("r")
        assert stream is not None
        del stream.tokens[2:]  # as if a delivery had been lost
        await session.compute(state, TEXT[3:5])
        await session.delivered()
        assert (stream.tokens, session.streams.followed()) == (TEXT[:2], {"r": stream})
        assert session.counted(Count.STREAM_GAPS) == 1
