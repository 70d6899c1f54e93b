"""What is durable of each request that this gateway has to do with, and who waits for more of it.

A client's stream is a position in a feed. A feed is filled by the lane that runs its request (`local`),
else from Redis (`gateway.cluster.follower`); its readers do not know which. A slow reader gets larger
pieces: nothing is queued for it.

Invariant: what is in a feed is in Redis.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from specinfer.logprobs import TokenLogprobs
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of a request from one position on, as far as they are durable."""

    position: int
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    ending: Ending | None


@dataclass(slots=True, eq=False)
class Feed:
    """One request."""

    request: GenerationRequest
    digest: str
    local: bool
    """Whether a lane of this gateway runs it."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    ending: Ending | None = None
    readers: int = 0
    failure: Exception | None = None
    """Why this gateway cannot go on telling of it."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def extend(
        self, start: int, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], ending: Ending | None
    ) -> None:
        """Adds what has become durable from a position on; what of it is there already is not added twice."""
        known = max(0, len(self.tokens) - start)
        self.tokens.extend(tokens[known:])
        self.logprobs.extend(logprobs[known:])
        self.ending = ending
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends its streams here; the request itself may go on."""
        self.failure = error
        self._wake()

    async def reach(self, position: int) -> None:
        """Waits until so many tokens are durable, or the request has ended.

        Raises:
            SpecInferError: if this gateway cannot go on telling of it.
        """
        while len(self.tokens) < position and self.ending is None:
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()

    async def pieces(self, position: int) -> AsyncIterator[Piece]:
        """The request from a position on; the last piece has the ending.

        Raises:
            SpecInferError: if this gateway cannot go on telling of it.
        """
        while True:
            await self.reach(position + 1)
            piece = Piece(position, self.tokens[position:], self.logprobs[position:], self.ending)
            yield piece
            if piece.ending is not None:
                return
            position += len(piece.tokens)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Feeds:
    """Feeds by request id: those of requests that run here, and those that somebody reads."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def unfinished(self) -> int:
        """Requests that somebody reads or that run here, and that have not ended."""
        return sum(feed.ending is None and (feed.local or feed.readers > 0) for feed in self._feeds.values())

    def get(self, request_id: str) -> Feed | None:
        """The feed of a request."""
        return self._feeds.get(request_id)

    def add(self, feed: Feed) -> Feed:
        """The feed of its request: this one, or the one that is there and can go on."""
        known = self._feeds.get(feed.request.request_id)
        if known is None or known.failure is not None:
            self._feeds[feed.request.request_id] = known = feed
        return known

    def open_local(self, request: GenerationRequest, digest: str, tokens: Sequence[int] = ()) -> Feed:
        """A lane runs this request from now on, from these generated tokens."""
        feed = self.add(Feed(request, digest, True, list(tokens)))
        feed.local = True
        return feed

    def moved(self, request_ids: Iterable[str]) -> None:
        """No lane of this gateway runs these requests any more."""
        for request_id in request_ids:
            feed = self._feeds.get(request_id)
            if feed is not None:
                feed.local = False
                self.forget_if_idle(feed)

    def forget_if_idle(self, feed: Feed) -> None:
        """Drops a feed that nobody reads and no lane fills."""
        name = feed.request.request_id
        if not feed.readers and (feed.ending is not None or not feed.local) and self._feeds.get(name) is feed:
            del self._feeds[name]

    def followed(self) -> dict[str, Feed]:
        """Those that are read and filled from Redis."""
        return {
            name: feed
            for name, feed in self._feeds.items()
            if feed.readers and not feed.local and feed.ending is None
        }

    def fail_all(self, error: Exception) -> None:
        """Ends all streams that have not ended."""
        for feed in self._feeds.values():
            feed.fail(error)
