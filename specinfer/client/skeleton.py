"""Skeleton-of-thought: an answer composed of points that are generated in parallel. Not lossless.

    route      does the question have an answer of several independent points?
    skeleton   the points, a few words each
    point-1..  each expanded in a sentence or two, all at the same time

Every question is a request of its own, `ID/route`, `ID/skeleton`, `ID/point-1`, so each survives the loss of
a gateway. A question that does not fit is answered as usual, under ID.

Invariant: a request that has not ended is cancelled when the caller leaves or when another point fails. The
questions for points differ in their last line only, so that the cache holds what they share once.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from specinfer.client.answer import Answer, Summary, add_up
from specinfer.client.options import known_options
from specinfer.client.resume import Item, Piece
from specinfer.client.stream import AsyncStream
from specinfer.errors import InvalidInputError
from specinfer.statuses import FinishReason
from specinfer.v1 import common_pb2, generation_pb2

FEWEST, MOST = 2, 10
"""Points of a skeleton; with fewer the question is answered as usual."""
ROUTE_TOKENS, SKELETON_TOKENS = 4, 96
_SHORTEST_DEADLINE_S = 0.001
"""Deadline of what is requested after the deadline: gateways take any positive one."""
_POINT = re.compile(r"^\s*(\d{1,2})[.):]\s*(.+?)\s*$", re.MULTILINE)
_SEVERITY = (
    *(FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.CONSTRAINT, FinishReason.LENGTH),
    *(FinishReason.DEADLINE, FinishReason.CANCELLED, FinishReason.UNSPECIFIED, FinishReason.ERROR),
)
"""The worst ending of all points is that of the answer."""
_Texts: TypeAlias = "asyncio.Queue[str | None]"
"""Text of one point as it comes; None at its end."""


def route(question: str) -> str:
    """Return the question whether the user's one fits."""
    return (
        f"Question: {question}\n\nCan this question be answered with a list of several points that do not "
        "depend on each other? Questions of mathematics, code, a single fact or a step-by-step derivation "
        "cannot. Answer with yes or no only."
    )


def fits(answer: str) -> bool:
    """Return whether the answer to `route` is yes."""
    return answer.strip().lower().startswith("yes")


def outline(question: str) -> str:
    """Return the question for the skeleton."""
    return (
        f"Question: {question}\n\nWrite only the skeleton of the answer: a numbered list of {FEWEST + 1} to "
        f"{MOST} points, each of 3 to 5 words and nothing else, one on a line."
    )


def points(skeleton: str) -> list[str]:
    """Return the points of a skeleton, in order; a number that does not go on from the one before ends it."""
    found: list[str] = []
    for number, point in _POINT.findall(skeleton):
        if int(number) != len(found) + 1 or len(found) == MOST:
            break
        found.append(point)
    return found


def expand(question: str, skeleton: Sequence[str], index: int) -> str:
    """Return the question for one point in full."""
    listed = "\n".join(f"{i + 1}. {point}" for i, point in enumerate(skeleton))
    return (
        f"Question: {question}\n\nThe skeleton of the answer:\n{listed}\n\nContinue the writing of one point "
        "only, in one or two short sentences. Do not write about the other points.\n"
        f"Point {index + 1}: {skeleton[index]}"
    )


def heading(index: int, point: str) -> str:
    """Return the text in front of an expanded point."""
    return f"{chr(10) * 2 if index else ''}{index + 1}. {point.rstrip('.:')}: "


def summarize(summaries: Sequence[Summary], ttft_s: float, total_s: float) -> Summary:
    """Return the sums over all points; the times are of the whole answer."""
    return Summary(
        finish_reason=max((one.finish_reason for one in summaries), key=_SEVERITY.index),
        prompt_tokens=sum(one.prompt_tokens for one in summaries),
        new_tokens=sum(one.new_tokens for one in summaries),
        stats=replace(add_up([one.stats for one in summaries]), lossy=True),
        ttft_seconds=ttft_s,
        total_seconds=total_s,
        queue_seconds=max(one.queue_seconds for one in summaries),
        seed=summaries[0].seed,
        points=len(summaries),
    )


class Requests(Protocol):
    """The part of `AsyncClient` that answers are composed with."""

    def stream(self, prompt: generation_pb2.GenerateRequest, /) -> AsyncStream:
        """Return the answer to one request."""

    async def abandon(self, request_id: str, /) -> None:
        """Stop a request that nobody waits for."""


class SkeletonOfThought:
    """Composes the answer to one request."""

    def __init__(self, client: Requests, request: generation_pb2.GenerateRequest) -> None:
        """Create the answer's composer, which sends nothing yet.

        Raises:
            InvalidInputError: if the request has no user's question at its end, or needs what an answer in
                points cannot have.
        """
        self._client, self._request = client, request
        self._question = _question(request)
        self._started = 0.0

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield the answer's pieces and its summary; raise the errors of `AsyncStream`."""
        self._started = time.monotonic()
        found = await self._points()
        if found:
            async with aclosing(self._expanded(found)) as items:
                async for item in items:
                    yield item
            return
        async with self._reading(self._in_time(self._request)) as stream:
            async for piece in stream:
                yield piece
            yield stream.answer.summary

    async def _points(self) -> list[str]:
        """Return the points of the answer; none if the question does not fit."""
        routed = await self._ask("route", route(self._question), ROUTE_TOKENS)
        if not fits(routed):
            return []
        found = points(await self._ask("skeleton", outline(self._question), SKELETON_TOKENS))
        return found if len(found) >= FEWEST else []

    async def _ask(self, name: str, prompt: str, tokens: int) -> str:
        """Return the answer to a question of ours: greedy and up to its end, whatever the request's options."""
        message = self._part(name, prompt, tokens)
        message.sampling.CopyFrom(common_pb2.SamplingParams(temperature=0.0))
        message.ClearField("ignore_eos")
        return (await self._whole(message)).text

    async def _expanded(self, found: Sequence[str]) -> AsyncGenerator[Item, None]:
        """Yield the points, generated at the same time and streamed in order."""
        texts: list[_Texts] = [asyncio.Queue() for _ in found]
        tasks = [
            asyncio.create_task(self._whole(message, own.put_nowait))
            for message, own in zip(self._point_messages(found), texts, strict=True)
        ]
        for own, task in zip(texts, tasks, strict=True):
            task.add_done_callback(partial(_end, own, texts))
        first_s = 0.0
        try:
            for index, point in enumerate(found):
                start = heading(index, point)  # with the first text: a refused point must not look begun
                while (text := await texts[index].get()) is not None:
                    first_s = first_s or self._elapsed()
                    yield Piece(0, (), start + text)
                    start = ""
                for task in tasks:
                    if task.done():
                        task.result()
                if start:
                    yield Piece(0, (), start)
            summaries = [task.result().summary for task in tasks]
            yield summarize(summaries, first_s or self._elapsed(), self._elapsed())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _point_messages(self, found: Sequence[str]) -> list[generation_pb2.GenerateRequest]:
        """Return the request of each point, which has its share of the tokens."""
        limit = self._request.max_new_tokens
        if not self._request.HasField("max_new_tokens"):
            limit = known_options()["max_new_tokens"].default
        # 0 fills the context; less is refused
        share = max(1, limit // len(found)) if limit > 0 else limit
        return [
            self._part(f"point-{index + 1}", expand(self._question, found, index), share)
            for index in range(len(found))
        ]

    def _part(self, name: str, prompt: str, tokens: int) -> generation_pb2.GenerateRequest:
        """Return the request with another question in the place of the user's."""
        message = self._in_time(self._request)
        message.request_id, message.max_new_tokens = f"{self._request.request_id}/{name}", tokens
        message.chat.messages[-1].content = prompt
        return message

    def _in_time(self, request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
        """Return a copy with what is left of the deadline, which is that of the whole answer."""
        message = generation_pb2.GenerateRequest()
        message.CopyFrom(request)
        if message.deadline_seconds > 0:
            left = message.deadline_seconds - self._elapsed()
            message.deadline_seconds = max(_SHORTEST_DEADLINE_S, left)
        return message

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    async def _whole(
        self, message: generation_pb2.GenerateRequest, on_text: Callable[[str], None] = lambda _: None
    ) -> Answer:
        async with self._reading(message) as stream:
            return await stream.read(on_text)

    @asynccontextmanager
    async def _reading(self, message: generation_pb2.GenerateRequest) -> AsyncIterator[AsyncStream]:
        """Yield the stream of a request, which is cancelled if its reader leaves."""
        try:
            async with self._client.stream(message) as stream:
                yield stream
        except (asyncio.CancelledError, GeneratorExit, SystemExit):  # SIGTERM, for which the CLI exits
            await self._client.abandon(message.request_id)
            raise


def _end(own: _Texts, every: Sequence[_Texts], task: asyncio.Task[Answer]) -> None:
    """End the texts of a task's point, or of all points if the task has failed."""
    failed = task.cancelled() or task.exception() is not None
    for texts in every if failed else [own]:
        texts.put_nowait(None)


def _question(request: generation_pb2.GenerateRequest) -> str:
    messages = request.chat.messages
    if not messages or messages[-1].role != "user":
        ends = messages[-1].role if messages else request.WhichOneof("prompt")
        why = "skeleton-of-thought needs a conversation that ends with a question of the user"
        raise InvalidInputError("prompt", ends, why)
    excluded = {
        "logprobs": request.logprobs,
        "stop_strings": list(request.stop_strings),
        "stop_token_ids": list(request.stop_token_ids),
        "chat.tools": list(request.chat.tools),
        "chat.end": request.chat.end,
        "constraint": request.constraint.WhichOneof("kind"),
    }
    for name, value in excluded.items():
        if value:
            raise InvalidInputError(name, value, "excluded by skeleton-of-thought")
    return messages[-1].content
