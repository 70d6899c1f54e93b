"""Skeleton-of-thought over the desk: parts are requests like all others, so trees speculate on them, too."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from gateway.decoding import DEFAULT_MAX_NEW_TOKENS, FILL_CONTEXT, RequestDecoder
from gateway.decomposition import skeleton
from gateway.desk import Desk
from gateway.digest import digest_of
from gateway.requests.caller import Caller
from gateway.requests.ending import Ending
from gateway.requests.feeds import Feed
from gateway.requests.request import FinishReason
from gateway.requests.text import TextStream
from specinfer.errors import InvalidInputError, NotFoundError
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, generation_pb2


@dataclass(frozen=True, slots=True)
class Told:
    """A part of the answer; the last one has the endings of all points."""

    text: str
    endings: Sequence[Ending] = ()


class SkeletonOfThought:
    """Answers one request in parts."""

    def __init__(
        self,
        desk: Desk,
        decoder: RequestDecoder,
        tokenizer: Tokenizer,
        message: generation_pb2.GenerateRequest,
        caller: Caller,
    ) -> None:
        """`message` is the request.

        Raises:
            InvalidInputError: if it cannot be decomposed, whatever it asks.
        """
        self._desk, self._decoder, self._tokenizer = desk, decoder, tokenizer
        self._message, self._caller = message, caller
        self.request_id = message.request_id or secrets.token_hex(8)
        decoder.check_request_id(self.request_id)
        self._question = _question(message)

    async def points(self) -> list[str]:
        """The points of the answer; none if the question does not fit."""
        routed = await self._ask("route", skeleton.route(self._question), skeleton.ROUTE_TOKENS)
        if not skeleton.fits(routed):
            return []
        outline = await self._ask("skeleton", skeleton.outline(self._question), skeleton.SKELETON_TOKENS)
        found = skeleton.points(outline)
        return found if len(found) >= skeleton.FEWEST else []

    async def tell(self, points: Sequence[str]) -> AsyncGenerator[Told]:
        """The points in order, expanded at the same time; each has its share of the tokens."""
        asked = self._message
        limit = asked.max_new_tokens if asked.HasField("max_new_tokens") else DEFAULT_MAX_NEW_TOKENS
        share = FILL_CONTEXT if limit == FILL_CONTEXT else max(1, limit // len(points))
        feeds: list[Feed] = []
        endings: list[Ending] = []
        try:
            for index in range(len(points)):
                prompt = skeleton.expand(self._question, points, index)
                feeds.append(await self._submit(self._part(f"point-{index + 1}", prompt, share)))
            for index, (point, feed) in enumerate(zip(points, feeds, strict=True)):
                yield Told(skeleton.heading(index, point))
                async for text, ending in self._pieces(feed):
                    yield Told(text)
                    endings += [ending] if ending is not None else []
            yield Told("", endings)
        finally:
            await self._stop(feed for feed in feeds[len(endings) :] if feed.ending is None)

    async def _ask(self, part: str, prompt: str, tokens: int) -> str:
        """The answer to a question of ours: greedy and up to its end, whatever the request asks for."""
        message = self._part(part, prompt, tokens)
        message.sampling.CopyFrom(common_pb2.SamplingParams(temperature=0.0))
        message.ClearField("ignore_eos")
        return "".join([text async for text, _ in self._pieces(await self._submit(message))])

    def _part(self, name: str, prompt: str, tokens: int) -> generation_pb2.GenerateRequest:
        """The request with another question in the place of the user's."""
        message = generation_pb2.GenerateRequest()
        message.CopyFrom(self._message)
        message.ClearField("decomposition")
        message.request_id, message.max_new_tokens = f"{self.request_id}/{name}", tokens
        message.chat.messages[-1].content = prompt
        return message

    async def _submit(self, message: generation_pb2.GenerateRequest) -> Feed:
        request = await self._decoder.decode(message, self._caller)
        return await self._desk.submit(request, digest_of(message, self._caller), self._caller)

    async def _pieces(self, feed: Feed) -> AsyncIterator[tuple[str, Ending | None]]:
        """Text as it comes, the last with how it ended: the desk may read another feed than this."""
        text = TextStream(self._tokenizer, feed.request.stop_strings)
        with self._desk.reading(feed) as feed:
            async for piece in feed.pieces(0):
                if piece.ending is not None and piece.ending.failure is not None:
                    raise piece.ending.failure
                yield text.push(piece.tokens, last=piece.ending is not None).text, piece.ending

    async def _stop(self, feeds: Iterable[Feed]) -> None:
        """The caller has left: nobody will read these."""
        for feed in feeds:
            try:
                await self._desk.cancel(feed.request.request_id, self._caller)
            except NotFoundError:
                continue  # it has just ended


def together(endings: Sequence[Ending], started: float, first: float, done: float) -> Ending:
    """How the whole request ended: the sums over its points. Times are of a monotonic clock."""
    histogram = [sum(counts) for counts in zip_longest(*(e.histogram for e in endings), fillvalue=0)]
    speculators: dict[str, list[int]] = {}
    for ending in endings:
        for name, counts in ending.speculators.items():
            known = speculators.get(name, [0] * len(counts))
            speculators[name] = [a + b for a, b in zip(known, counts, strict=True)]
    return replace(
        endings[0],
        finish=max((ending.finish for ending in endings), key=_SEVERITY.index),
        new_tokens=sum(ending.new_tokens for ending in endings),
        prompt_tokens=sum(ending.prompt_tokens for ending in endings),
        ttft_s=first - started,
        total_s=done - started,
        steps=sum(ending.steps for ending in endings),
        drafted=sum(ending.drafted for ending in endings),
        accepted=sum(ending.accepted for ending in endings),
        histogram=histogram,
        speculators=speculators,
        lossy=True,
    )


_SEVERITY = (
    *(FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH, FinishReason.DEADLINE),
    *(FinishReason.CANCELLED, FinishReason.ERROR),
)
"""Of several points the worst ending is the whole request's."""


def _question(message: generation_pb2.GenerateRequest) -> str:
    messages = message.chat.messages
    if not messages or messages[-1].role != "user":
        why = "skeleton needs a conversation (`chat`) that ends with a question of the user"
        raise InvalidInputError("decomposition", "SKELETON", why)
    for name in ("logprobs", "stop_strings", "stop_token_ids"):
        if getattr(message, name):
            raise InvalidInputError("decomposition", "SKELETON", f"skeleton excludes {name}")
    if message.HasField("constraint"):
        raise InvalidInputError("decomposition", "SKELETON", "skeleton excludes constraint")
    return messages[-1].content
