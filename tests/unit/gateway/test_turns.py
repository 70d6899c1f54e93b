"""Callers take turns: much work of one caller delays another by one piece only."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.callers import ANYBODY, Caller
from gateway.api.turns import FairSemaphore
from specinfer.errors import ExhaustedError

EVIL, GOOD = Caller("evil"), Caller("good")


async def test_a_caller_with_much_work_delays_another_by_one_piece() -> None:
    turns, order = FairSemaphore(1), list[str]()

    async def work(caller: Caller) -> None:
        async with turns.take(caller):
            order.append(caller.name)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work(EVIL)) for _ in range(50)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work(GOOD)) for _ in range(2)]
    await asyncio.gather(*tasks)
    assert len(order) == 52
    first, second = [place for place, name in enumerate(order) if name == "good"]
    assert first <= 3, "after the piece that ran, and the next one"
    assert second - first == 2


async def test_the_limit_of_a_key_also_limits_waiting_requests() -> None:
    turns, few = FairSemaphore(1), Caller("few", max_concurrent=2)
    async with turns.take(GOOD):

        async def work() -> None:
            async with turns.take(few):
                pass

        waiting = [asyncio.create_task(work()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ExhaustedError, match="key few"):
            await work()
    await asyncio.gather(*waiting)


async def test_no_key_occupies_all_places() -> None:
    """Long work of one caller must not delay others. Calls without a key may use all places."""
    places, release = FairSemaphore(2), asyncio.Event()

    async def hold(caller: Caller) -> None:
        async with places.take(caller):
            await release.wait()

    long = [asyncio.create_task(hold(EVIL)) for _ in range(5)]
    await asyncio.sleep(0)
    async with places.take(GOOD):
        assert not release.is_set()
    release.set()
    await asyncio.gather(*long)
    release.clear()
    anybody = [asyncio.create_task(hold(ANYBODY)) for _ in range(2)]
    await asyncio.sleep(0)
    assert places._free == 0
    release.set()
    await asyncio.gather(*anybody)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9)), max_size=30),
)
def test_places_are_neither_lost_nor_given_twice(places: int, jobs: list[tuple[str, int, int]]) -> None:
    """Tasks are cancelled while they wait, while they work, or just as they get a place."""

    async def run() -> None:
        turns, busy = FairSemaphore(places), Counter[str]()

        async def work(name: str, length: int) -> None:
            async with turns.take(Caller(name)):
                busy["now"] += 1
                assert busy["now"] <= places
                try:
                    for _ in range(length):
                        await asyncio.sleep(0)
                finally:
                    busy["now"] -= 1

        tasks = [(asyncio.create_task(work(name, length)), leaves) for name, length, leaves in jobs]
        for moment in range(8):
            await asyncio.sleep(0)
            for task, leaves in tasks:
                if leaves == moment:
                    task.cancel()
        ended = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in ended)
        async with asyncio.timeout(60):
            for _ in range(places):
                await turns.take(Caller("last")).__aenter__()

    asyncio.run(run())
