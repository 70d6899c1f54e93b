"""Store requests' durable tokens (those in Redis), and wake waiting clients.

A client reads a token stream from a position. The run of a session fills the stream, else `gateway.cluster.follower`
fills it from Redis. A slow reader gets larger chunks, up to `_CHUNK` tokens; nothing is queued per reader.
Invariant: the tokens of a token stream are in Redis, and no position is skipped.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from specinfer.request.statuses import LogprobRow
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.request import GenerationRequest

_CHUNK = 16
"""Maximum tokens of a chunk, which a slow reader must store."""


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A request's durable tokens after its first `position` tokens."""

    position: int
    tokens: list[int]
    logprobs: list[LogprobRow]
    ending: Ending | None


@dataclass(slots=True, eq=False)
class TokenStream:
    request: GenerationRequest
    idempotency_key: str
    run: object | None = None
    """The run of a session that fills this stream; None: another gateway runs the request."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobRow] = field(default_factory=list)
    ending: Ending | None = None
    readers: int = 0
    behind: bool = False
    """True if tokens were refused because earlier ones are missing; the follower reads those."""
    failure: Exception | None = None
    """Error for readers if this gateway cannot continue the stream, else None."""
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)
    """Futures of readers that wait for new tokens."""

    @property
    def local(self) -> bool:
        """True while a session of this gateway runs the request."""
        return self.run is not None

    @property
    def followed(self) -> bool:
        """True if readers need tokens that only the store has."""
        return bool(self.readers) and self.ending is None and (not self.local or self.behind)

    def extend(
        self, start: int, tokens: Sequence[int], logprobs: Sequence[LogprobRow], ending: Ending | None
    ) -> bool:
        """Add durable tokens; `start` is the first token's position.

        An ended stream stays as it is.

        Returns:
            False if tokens before `start` are missing: nothing was added, and the follower reads all of them.
        """
        if self.ending is not None:
            return True
        known = len(self.tokens) - start
        self.behind = known < 0
        if self.behind:
            return False
        self.tokens.extend(tokens[known:])
        self.logprobs.extend(logprobs[known:])
        self.ending = ending
        self._wake()
        return True

    def fail(self, error: Exception) -> None:
        """Raise `error` in all readers; the request itself may continue."""
        self.failure = error
        self._wake()

    async def reach(self, position: int) -> None:
        """Wait until `position` tokens are durable, or the request has ended."""
        while len(self.tokens) < position and self.ending is None:
            if self.failure is not None:
                raise self.failure
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def since(self, position: int) -> StreamChunk:
        """Return up to `_CHUNK` tokens after the first `position`.

        The last tokens come with the ending, once it is stored.
        """
        end = position + _CHUNK
        ending = self.ending if end >= len(self.tokens) else None
        return StreamChunk(position, self.tokens[position:end], self.logprobs[position:end], ending)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():  # done if cancelled, as its client has left
                waiter.set_result(None)


class TokenStreams:
    """Token streams of requests with a session or reader here."""

    def __init__(self) -> None:
        self._token_streams: dict[str, TokenStream] = {}

    def __len__(self) -> int:
        return len(self._token_streams)

    @property
    def unfinished(self) -> int:
        """Number of unfinished requests with a local session or reader."""
        return sum(
            token_stream.ending is None and (token_stream.local or token_stream.readers > 0)
            for token_stream in self._token_streams.values()
        )

    def get(self, request_id: str) -> TokenStream | None:
        return self._token_streams.get(request_id)

    def add(self, token_stream: TokenStream) -> TokenStream:
        """Register a token stream; return the request's registered stream."""
        known = self._token_streams.get(token_stream.request.request_id)
        if known is None or known.failure is not None:
            self._token_streams[token_stream.request.request_id] = known = token_stream
        return known

    def forget_if_idle(self, token_stream: TokenStream) -> None:
        """Remove a token stream that has neither readers nor a session."""
        request_id = token_stream.request.request_id
        if (
            not token_stream.readers
            and (token_stream.ending is not None or not token_stream.local)
            and self._token_streams.get(request_id) is token_stream
        ):
            del self._token_streams[request_id]

    def followed(self) -> dict[str, TokenStream]:
        """Return by id the streams that the follower must fill."""
        return {
            name: token_stream for name, token_stream in self._token_streams.items() if token_stream.followed
        }

    def fail_all(self, error: Exception) -> None:
        for token_stream in self._token_streams.values():
            token_stream.fail(error)
