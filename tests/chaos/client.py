"""A client that checks the position of every reply, and continues at another gateway.

It replaces the client of `specinfer.client`, which would silently drop repeated tokens.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from specinfer.service.channel import open_channel
from specinfer.v1 import generation_pb2, generation_pb2_grpc
from tests.chaos.orders import Outcome

_SILENCE_S = 4.0
"""Seconds without a reply before trying another gateway: a stopped process keeps its connections."""
_RETRY_S = 0.1
_LOOK_EVERY = 16
"""Replies between two checks in Redis."""
_CURABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_BROKEN_CONNECTION = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Codes that also stand for a reset stream, if the message states so."""


class ChangedError(Exception):
    """A client received wrong tokens; `kind` is "lost", "repeated" or "changed"."""

    def __init__(self, kind: str, tokens: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.tokens = kind, tokens


class Look(Protocol):
    """Compares received tokens with stored ones (`tests.chaos.audit`)."""

    async def look(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Raise ChangedError if they differ."""


class UnfinishedError(Exception):
    """A request ended with an error, or did not end in time."""


@dataclass(slots=True)
class Watch:
    """Counts of all clients, for the report."""

    clock: Callable[[], float]
    pieces: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """(time of a reply, time of the next reply) in one stream; only gaps of at least 0.1 s."""

    def piece(self, before: float) -> float:
        """Record a reply of a stream; return its time."""
        now = self.clock()
        self.pieces += 1
        if now - before >= 0.1:
            self.gaps.append((before, now))
        return now


class Client:
    """Sends one request after another, and reads each to its end."""

    def __init__(self, addresses: list[str], watch: Watch, audit: Look, patience_s: float) -> None:
        self._channels = [open_channel(address) for address in addresses]
        self._stubs = [generation_pb2_grpc.GenerationStub(channel) for channel in self._channels]
        self._watch, self._audit, self._patience_s = watch, audit, patience_s
        self._turn = 0
        self._last = 0.0
        """Time of the latest reply, or of the first try of the request."""
        self.retries = 0

    async def follow(self, order: generation_pb2.GenerateRequest) -> Outcome:
        """Send a request; return its outcome.

        Raises:
            ChangedError: if tokens are missing, repeated or not stored.
            UnfinishedError: if the request ends with an error, or not within the client's patience.
        """
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(order)
        request.request_id = secrets.token_hex(8)
        outcome, deadline = Outcome(request_id=request.request_id), self._watch.clock() + self._patience_s
        failure, self._last = "nothing was said", self._watch.clock()
        while self._watch.clock() < deadline:
            try:
                await self._read(request, outcome)
            except grpc.aio.AioRpcError as error:
                failure = f"{request.request_id}: {error.code().name}: {error.details()}"
                if not _curable(error):
                    raise UnfinishedError(failure) from error
                await asyncio.sleep(_RETRY_S)
            except TimeoutError:
                failure = f"{request.request_id}: silent"
            if outcome.finish:
                return outcome
            self.retries += 1
            self._turn += 1
        message = f"{failure}; {len(outcome.tokens)} tokens after {self._patience_s:.0f} s"
        raise UnfinishedError(message)

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    async def _read(self, request: generation_pb2.GenerateRequest, outcome: Outcome) -> None:
        stub = self._stubs[self._turn % len(self._stubs)]
        if outcome.tokens:
            message = generation_pb2.AttachRequest(
                request_id=request.request_id, from_token=len(outcome.tokens)
            )
            call = stub.Attach(message)
        else:
            call = stub.Generate(request)
        try:
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    reply = await call.read()
                if not isinstance(reply, generation_pb2.GenerateReply):
                    return  # ended, perhaps without a summary
                self._last = self._watch.piece(self._last)
                take(reply, outcome)
                if outcome.finish or self._watch.pieces % _LOOK_EVERY == 0:
                    await self._audit.look(request.request_id, outcome.tokens, bool(outcome.finish))
        finally:
            call.cancel()


def take(reply: generation_pb2.GenerateReply, outcome: Outcome) -> None:
    """Append a reply to an outcome.

    Raises:
        ChangedError: if the reply does not start at the outcome's end.
    """
    have = len(outcome.tokens)
    if (reply.token_ids or not reply.HasField("summary")) and reply.position != have:
        kind = "lost" if reply.position > have else "repeated"
        raise ChangedError(
            kind,
            abs(reply.position - have),
            f"{reply.request_id}: position {reply.position} after {have} tokens",
        )
    outcome.tokens.extend(reply.token_ids)
    outcome.logprobs.extend(reply.logprobs)
    outcome.text += reply.text
    if reply.HasField("summary"):
        outcome.finish = reply.summary.finish_reason
        if reply.summary.new_tokens != len(outcome.tokens):
            reported, has = reply.summary.new_tokens, len(outcome.tokens)
            raise ChangedError(
                "lost",
                abs(reported - has),
                f"{reply.request_id}: the summary tells of {reported} tokens, {has} came",
            )


def compare(request_id: str, outcome: Outcome, expected: Outcome) -> None:
    """Compare an outcome with that of the undisturbed run.

    Raises:
        ChangedError: if they differ.
    """
    if outcome == expected:
        return
    at = next(
        (
            n
            for n, pair in enumerate(zip(outcome.tokens, expected.tokens, strict=False))
            if len(set(pair)) > 1
        ),
        -1,
    )
    pairs = [
        (len(o.tokens), o.tokens[-5:], o.text[-10:], o.finish, o.logprobs[-3:]) for o in (outcome, expected)
    ]
    message = f"{request_id}: first differing token {at}; ends {pairs[0]}, undisturbed {pairs[1]}"
    raise ChangedError("changed", _differing(outcome.tokens, expected.tokens), message)


def _differing(outcomes: list[int], wanted: list[int]) -> int:
    """Return the number of different tokens; at least 1, as the text or the finish reason may differ."""
    differing = sum(a != b for a, b in zip(outcomes, wanted, strict=False))
    return max(1, differing + abs(len(outcomes) - len(wanted)))


def _curable(error: grpc.aio.AioRpcError) -> bool:
    if error.code() in _BROKEN_CONNECTION:
        words = ("rst_stream", "stream removed", "reset", "closed", "goaway")
        return any(word in (error.details() or "").lower() for word in words)
    return error.code() in _CURABLE
