"""The example of skeleton-of-thought: its points are requested concurrently."""

import asyncio

import pytest

from examples import skeleton
from specinfer import AsyncClient
from tests.support.system import running_system

POINTS = ["one", "another", "last"]


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
    assert skeleton.read_points(text) == expected


def test_questions_for_points_differ_only_at_their_ends() -> None:
    first, second = (skeleton.expand("Why?", ["a", "b"], index) for index in range(2))
    assert first.rpartition("Point ")[0] == second.rpartition("Point ")[0]
    assert first.endswith("Point 1: a")


async def test_points_are_written_concurrently_with_the_same_text_as_alone(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model writes no lists, so the points are given."""

    async def points_found(*_: object) -> list[str]:
        return POINTS

    monkeypatch.setattr(skeleton, "find_points", points_found)
    running, max_running = 0, 0

    class Counting(AsyncClient):
        async def generate(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
            nonlocal running, max_running
            running += 1
            max_running = max(max_running, running)
            await asyncio.sleep(0)  # let the other requests begin
            try:
                return await super().generate(*arguments, **options)  # type: ignore[arg-type]
            finally:
                running -= 1

    async with running_system(redis_url, {}) as system, Counting(system.address) as client:
        text = await skeleton.answer(client, "hm?", 12)
        assert max_running == len(POINTS)
        alone = [
            (await client.generate(skeleton.expand("hm?", POINTS, index), max_new_tokens=4)).text
            for index in range(len(POINTS))
        ]
    assert text == "\n\n".join(
        f"{i}. {p}: {t}" for i, (p, t) in enumerate(zip(POINTS, alone, strict=True), 1)
    )
