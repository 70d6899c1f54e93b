"""Whom a service is not asked for, and for how long."""

from itertools import pairwise

from specinfer.drafters.refusals import LONGEST_PAUSE, Refusals


def tries(refusals: Refusals, steps: int, request_id: str = "r") -> list[int]:
    """Steps in which speculator 0 is asked and has no room."""
    tries = []
    for step in range(steps):
        if 0 in refusals.willing(request_id, [0, 1]):
            tries.append(step)
            refusals.defer(request_id, 0)
    return tries


def test_who_is_put_off_is_asked_again_at_once_and_then_ever_more_rarely() -> None:
    refusals = Refusals()
    asked = tries(refusals, 400)
    assert asked[:6] == [0, 1, 3, 7, 15, 31]
    assert max(b - a for a, b in pairwise(asked)) == LONGEST_PAUSE + 1
    assert len(asked) > 9, "never for good"


def test_one_served_step_makes_good_for_all_before() -> None:
    refusals = Refusals()
    tries(refusals, 8)
    refusals.served("r", 0)
    assert not refusals
    assert tries(refusals, 8) == [0, 1, 3, 7]


def test_who_refuses_is_not_asked_again_and_others_are() -> None:
    refusals = Refusals()
    refusals.refuse("r", 0)
    assert [refusals.willing("r", [0, 1]) for _ in range(100)] == [[1]] * 100
    assert refusals.willing("s", [0, 1]) == [0, 1]
    refusals.forget(["r", "nobody"])
    assert refusals.willing("r", [0, 1]) == [0, 1]
    refusals.refuse("r", 0)
    refusals.clear()
    assert not refusals
