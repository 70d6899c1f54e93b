"""Modes alternate, and are compared within their turns."""

import pytest

from specinfer.system.turns import alternate, quartiles, ratios, standard_error


def test_every_second_turn_is_reversed() -> None:
    assert [alternate("abc", turn) for turn in range(3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]
    assert alternate({"plain": 1, "tree": 2}, 1) == ["tree", "plain"]


def test_modes_are_compared_turn_by_turn() -> None:
    assert ratios([3.0, 2.0], [2.0, 4.0]) == [1.5, 0.5]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_spread_of_few_turns() -> None:
    assert standard_error([1.5]) is None
    assert standard_error([1.5, 2.0]) == 0.25
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)
    assert quartiles([1.0, 2.0, 3.0]) == (1.5, 2.0, 2.5)
