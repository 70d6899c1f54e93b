"""Speculators that a request is not sent to after a refusal, and for how many steps."""

from itertools import pairwise

from specinfer.drafters.refusals import LONGEST_PAUSE, Refusals


def tries(refusals: Refusals, steps: int, request_id: str = "r") -> list[int]:
    """Return the steps in which speculator 0 is asked; it never has room."""
    tries = []
    for step in range(steps):
        if 0 in refusals.willing(request_id, [0, 1]):
            tries.append(step)
            refusals.defer(request_id, 0)
    return tries


def test_a_speculator_without_room_is_asked_more_and_more_rarely() -> None:
    refusals = Refusals()
    steps = tries(refusals, 400)
    assert steps[:6] == [0, 1, 3, 7, 15, 31]
    assert max(b - a for a, b in pairwise(steps)) == LONGEST_PAUSE + 1
    assert len(steps) > 9, "never for good"


def test_one_served_step_clears_all_earlier_refusals() -> None:
    refusals = Refusals()
    tries(refusals, 8)
    refusals.served("r", 0)
    assert not refusals
    assert tries(refusals, 8) == [0, 1, 3, 7]


def test_a_speculator_that_refuses_a_request_gets_only_other_requests() -> None:
    refusals = Refusals()
    refusals.refuse("r", 0)
    assert [refusals.willing("r", [0, 1]) for _ in range(100)] == [[1]] * 100
    assert refusals.willing("s", [0, 1]) == [0, 1]
    refusals.forget(["r", "nobody"])
    assert refusals.willing("r", [0, 1]) == [0, 1]
    refusals.refuse("r", 0)
    refusals.clear()
    assert not refusals
