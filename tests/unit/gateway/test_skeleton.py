"""Skeleton-of-thought, pure: what the model's answers mean."""

import pytest

from gateway.decomposition import skeleton
from gateway.decomposition.expansion import together
from gateway.requests.ending import Ending
from gateway.requests.request import FinishReason


@pytest.mark.parametrize(
    ("answer", "expected"), [(" Yes, it can.", True), ("yes", True), ("No.", False), ("", False)]
)
def test_the_routers_answer(answer: str, expected: bool) -> None:
    assert skeleton.fits(answer) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. Eat well\n2. Sleep enough.\n3) Move daily", ["Eat well", "Sleep enough.", "Move daily"]),
        ("Sure! Here it is:\n 1: First\n\n2: Second\n", ["First", "Second"]),
        ("1. One\n3. Three", ["One"]),
        ("- no\n- numbers", []),
        ("".join(f"{i}. p{i}\n" for i in range(1, 15)), [f"p{i}" for i in range(1, 11)]),
    ],
)
def test_points_of_a_skeleton(text: str, expected: list[str]) -> None:
    assert skeleton.points(text) == expected


def test_questions_for_points_differ_only_at_their_ends() -> None:
    first, second = (skeleton.expand("Why?", ["a", "b"], i) for i in range(2))
    assert first.rpartition("Point ")[0] == second.rpartition("Point ")[0]
    assert first.endswith("Point 1: a")
    assert [skeleton.heading(i, "a.") for i in range(2)] == ["1. a: ", "\n\n2. a: "]


def test_the_whole_ending_has_the_sums_and_the_worst_reason() -> None:
    parts = [
        Ending(
            FinishReason.STOP_TOKEN, new_tokens=3, steps=2, histogram=[1, 1], speculators={"a": [4, 1, 1]}
        ),
        Ending(FinishReason.LENGTH, new_tokens=5, steps=4, histogram=[3, 0, 1], speculators={"a": [1, 0, 0]}),
    ]
    found = together(parts, 10.0, 11.0, 14.0)
    assert (found.finish, found.new_tokens, found.steps) == (FinishReason.LENGTH, 8, 6)
    assert (found.histogram, found.speculators) == ([4, 1, 1], {"a": [5, 1, 1]})
    assert (found.ttft_s, found.total_s, found.lossy) == (1.0, 4.0, True)
