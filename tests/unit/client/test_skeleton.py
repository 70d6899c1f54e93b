"""Skeleton-of-thought without a gateway: prompts, parsing, composing over streams that follow a script."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from specinfer.client import (
    AsyncStream,
    FinishReason,
    Piece,
    SpeculationStats,
    SpeculatorStats,
    Summary,
    make_request,
    skeleton,
)
from specinfer.client.resume import Item
from specinfer.client.skeleton import SkeletonOfThought, summarize
from specinfer.errors import UnavailableError
from specinfer.v1 import generation_pb2

NAMES = ["point-1", "point-2", "point-3"]
OUTLINE = "1. One\n2. Two.\n3. Three"
WHOLE = "1. One: text of point-1\n\n2. Two: text of point-2\n\n3. Three: text of point-3"


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


def test_the_summary_has_the_sums_and_the_worst_ending() -> None:
    rows = [SpeculatorStats("a", 4, 1, 1), SpeculatorStats("a", 1, 2, 0), SpeculatorStats("b", 1, 0, 0)]
    parts = [
        Summary(
            FinishReason.STOP_TOKEN,
            new_tokens=3,
            queue_seconds=0.5,
            seed=9,
            stats=SpeculationStats(2, acceptance_histogram=(1, 1), speculators=(rows[0],)),
        ),
        Summary(
            FinishReason.LENGTH,
            new_tokens=5,
            queue_seconds=0.25,
            seed=8,
            stats=SpeculationStats(4, acceptance_histogram=(3, 0, 1), speculators=(rows[1], rows[2])),
        ),
    ]
    found = summarize(parts, 1.0, 4.0)
    assert (found.finish_reason, found.new_tokens, found.stats.steps) == (FinishReason.LENGTH, 8, 6)
    assert found.stats.acceptance_histogram == (4, 1, 1)
    assert found.stats.speculators == (SpeculatorStats("a", 5, 3, 1), SpeculatorStats("b", 1, 0, 0))
    assert (found.ttft_seconds, found.total_seconds, found.queue_seconds) == (1.0, 4.0, 0.5)
    assert (found.stats.lossy, found.points, found.seed) == (True, 2, 9)


@pytest.mark.parametrize("reason", FinishReason)
def test_every_ending_has_its_place(reason: FinishReason) -> None:
    found = summarize([Summary(reason), Summary(FinishReason.STOP_TOKEN)], 1.0, 2.0)
    assert found.finish_reason is reason


async def at_once() -> None:
    """Nothing holds the stream up."""


@dataclass
class Script:
    """Answers requests by the last part of their id; `before` runs between the two pieces of each."""

    before: dict[str, Callable[[], Awaitable[Any]]] = field(default_factory=dict)
    routed: str = "yes"
    sent: dict[str, generation_pb2.GenerateRequest] = field(default_factory=dict)
    abandoned: list[str] = field(default_factory=list)

    def stream(self, prompt: generation_pb2.GenerateRequest, /) -> AsyncStream:
        """The stream of a request."""
        return AsyncStream(prompt.request_id, self._items(prompt))

    async def abandon(self, request_id: str, /) -> None:
        """Stops a request."""
        await asyncio.sleep(0)
        self.abandoned.append(request_id)

    async def _items(self, request: generation_pb2.GenerateRequest) -> AsyncGenerator[Item, None]:
        name = request.request_id.rpartition("/")[2]
        self.sent[name] = request
        answers = {"route": self.routed, "skeleton": OUTLINE}
        text = answers.get(name, f"text of {name}")
        yield Piece(0, (1,), text[:1])
        await self.before.get(name, at_once)()
        yield Piece(1, (2,), text[1:])
        yield Summary(FinishReason.LENGTH, new_tokens=2)

    def answer(self, **options: Any) -> AsyncStream:
        """The composed answer to a request."""
        request = make_request("hm?", request_id="r", **options)
        return AsyncStream("r", SkeletonOfThought(self, request).items())


async def test_points_are_generated_at_once_and_streamed_in_order() -> None:
    script = Script(dict.fromkeys(NAMES, asyncio.Barrier(len(NAMES)).wait))
    async with asyncio.timeout(10.0):
        answer = await script.answer().read()
    assert (answer.text, answer.token_ids) == (WHOLE, [])
    assert (answer.summary.points, answer.summary.new_tokens) == (3, 6)
    assert answer.ttft_s > 0
    assert script.abandoned == []


async def test_a_point_without_text_keeps_its_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Script, request: generation_pb2.GenerateRequest) -> AsyncGenerator[Item, None]:
        name = request.request_id.rpartition("/")[2]
        if text := {"route": "yes", "skeleton": OUTLINE, "point-2": "hm"}.get(name):
            yield Piece(0, (1,), text)
        yield Summary(FinishReason.STOP_TOKEN)

    monkeypatch.setattr(Script, "_items", nothing)
    assert (await Script().answer().read()).text == "1. One: \n\n2. Two: hm\n\n3. Three: "


@pytest.mark.parametrize("failing", NAMES)
async def test_one_point_that_fails_ends_the_others(failing: str) -> None:
    """At once, and not only when its turn comes."""

    async def fail() -> None:
        raise UnavailableError("away")

    script = Script(dict.fromkeys(NAMES, asyncio.Event().wait) | {failing: fail})
    async with asyncio.timeout(10.0):
        with pytest.raises(UnavailableError, match="away"):
            await script.answer().read()
    assert sorted(script.abandoned) == [f"r/{name}" for name in NAMES if name != failing]


@pytest.mark.parametrize("where", ["route", "skeleton", "point-1", "point-2", "r"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_whoever_leaves_cancels_what_has_not_ended(where: str, cancelled: bool) -> None:
    """By closing the stream, or by a reader that is cancelled."""
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    script = Script({where: hang}, "no" if where == "r" else "yes")
    stream = script.answer()
    async with asyncio.timeout(10.0):
        if cancelled or where in ("route", "skeleton"):
            reading = asyncio.create_task(stream.read())
            await reached.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        else:
            await anext(stream)
            if where.startswith("point"):
                await reached.wait()
        await stream.aclose()
    assert script.abandoned == (["r"] if where == "r" else [f"r/{where}"])


@pytest.mark.parametrize(("given", "left"), [(5.0, 2.0), (3.5, 0.5), (1.0, 0.001), (-1.0, -1.0)])
async def test_the_deadline_is_that_of_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, given: float, left: float
) -> None:
    """One that is no deadline is left to the gateway, which refuses it."""
    monkeypatch.setattr(SkeletonOfThought, "_elapsed", lambda _: 3.0)
    script, usual = Script(), Script(routed="no")
    await script.answer(deadline_seconds=given).read()
    await usual.answer(deadline_seconds=given).read()
    assert {request.deadline_seconds for request in (*script.sent.values(), usual.sent["r"])} == {left}


@pytest.mark.parametrize(("given", "share"), [(30, 10), (2, 1), (0, 0), (-6, -6)])
async def test_points_share_the_tokens(given: int, share: int) -> None:
    script = Script()
    await script.answer(max_new_tokens=given, temperature=0.7, seed=5, ignore_eos=True).read()
    points = [request for name, request in script.sent.items() if name.startswith("point")]
    assert [request.max_new_tokens for request in points] == [share] * 3
    assert all(request.sampling.seed == 5 and request.ignore_eos for request in points)
    for name in ("route", "skeleton"):
        assert not script.sent[name].ignore_eos
        assert script.sent[name].sampling.temperature == 0
