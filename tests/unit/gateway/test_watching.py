"""Events for watching clients: they wait to be read, old ones are dropped, their rate is limited."""

import pytest

from gateway.api.callers import Caller
from gateway.api.watch.watches import AT_ONCE, MAX_UNREAD, MAX_WATCHES, PER_SECOND, Pace, Watches
from specinfer.errors import ExhaustedError, UnavailableError
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

ALICE, BOB = Caller("alice"), Caller("bob")


def progress(number: int, request_id: str = "r", caller: str = "alice", final: bool = False) -> Progress:
    state = RequestState.new(GenerationRequest(request_id, (1,), 1000, GREEDY, caller=caller), 0.0, 0, False)
    return Progress(state, [number], [], number, final)


def test_watches_are_counted_while_open() -> None:
    watches = Watches()
    assert not watches
    with watches.open(ALICE, "r"), watches.open(ALICE, ""):
        assert watches
        assert len(watches) == 2
    assert not watches


def test_the_oldest_steps_are_dropped_and_counted_but_ends_are_kept() -> None:
    watches = Watches()
    with watches.open(ALICE, "") as watch:
        watches.publish(None, [progress(0, "ended", final=True)], [])
        watches.publish(None, [progress(number) for number in range(MAX_UNREAD + 5)], [])
        watches.publish(None, [progress(0, caller="bob")], [])
        seen, dropped = watch.take()
        assert (seen.item.request_id, dropped) == ("ended", 6)
        left = [watch.take() for _ in range(MAX_UNREAD - 1)]
    assert [seen.item.start for seen, _ in left] == list(range(6, MAX_UNREAD + 5))
    assert {dropped for _, dropped in left} == {0}


def test_the_number_of_ends_is_bounded_too() -> None:
    watches = Watches()
    with watches.open(ALICE, "") as watch:
        watches.publish(None, [progress(number, final=True) for number in range(MAX_UNREAD + 3)], [])
        assert watch.take()[0].item.start == 3


def test_one_key_cannot_take_all_places() -> None:
    watches, opened = Watches(), []
    for number in range(MAX_WATCHES // 2):
        opened.append(watches.open(ALICE, f"r{number % 3}"))
        opened[-1].__enter__()
    with pytest.raises(ExhaustedError, match="32 of this key"), watches.open(ALICE, "r0"):
        pass
    with watches.open(BOB, "r0"):
        assert len(watches) == MAX_WATCHES // 2 + 1


async def test_unread_events_are_delivered_before_a_watch_ends() -> None:
    watches = Watches()
    with watches.open(ALICE, "r") as watch:
        watches.publish(None, [progress(4)], [])
        watches.close()
        await watch.wait()
        assert watch.take()[0].item.start == 4
        with pytest.raises(UnavailableError):
            await watch.wait()


def test_events_after_a_burst_have_a_limited_rate() -> None:
    pace, now = Pace(), 100.0
    waits = [pace.turn(now) for _ in range(AT_ONCE + 3)]
    assert waits[: AT_ONCE - 1] == [0.0] * (AT_ONCE - 1)
    assert waits[-1] == pytest.approx(3 / PER_SECOND)
    assert waits[-1] - waits[-2] == pytest.approx(1 / PER_SECOND)
    assert pace.turn(now + 60.0) == 0.0
