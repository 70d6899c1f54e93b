"""A client that believes nothing: it checks the position of every piece and goes on at another gateway.

It stands beside the client of `specinfer.client`, which would silently drop what comes twice.
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
"""After which it turns to another gateway: a stopped process keeps its connections and says nothing."""
_RETRY_S = 0.1
_LOOK_EVERY = 16
"""Pieces between two looks into Redis."""
_CURABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_BROKEN_CONNECTION = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Where the text says so: gRPC tells of a reset stream in these, too."""


class ChangedError(Exception):
    """A client was given something impossible; `kind` is one of "lost", "repeated", "changed"."""

    def __init__(self, kind: str, tokens: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.tokens = kind, tokens


class Look(Protocol):
    """Compares what a client was given with what is stored; see `tests.chaos.audit`."""

    async def look(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        """Raises ChangedError if they differ."""


class UnfinishedError(Exception):
    """A request ended with an error, or did not end in time."""


@dataclass(slots=True)
class Watch:
    """Totals of what the clients have seen, for the report."""

    clock: Callable[[], float]
    pieces: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """(time of a piece, time of the next) of all streams, those of at least a tenth of a second."""

    def piece(self, before: float) -> float:
        """Notes that a stream went on; returns the time."""
        now = self.clock()
        self.pieces += 1
        if now - before >= 0.1:
            self.gaps.append((before, now))
        return now


class Client:
    """Sends one request after another and follows each to its end."""

    def __init__(self, addresses: list[str], watch: Watch, audit: Look, patience_s: float) -> None:
        self._channels = [open_channel(address) for address in addresses]
        self._stubs = [generation_pb2_grpc.GenerationStub(channel) for channel in self._channels]
        self._watch, self._audit, self._patience_s = watch, audit, patience_s
        self._turn = 0
        self._last = 0.0
        """When a piece came, or when the request was first sent."""
        self.retries = 0

    async def follow(self, order: generation_pb2.GenerateRequest) -> Outcome:
        """Everything that a request brings.

        Raises:
            ChangedError: if tokens are left out, come twice or are not stored.
            UnfinishedError: if it ends with an error, or not within the client's patience.
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
        """Closes the connections."""
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
    """Adds a piece to what came before it.

    Raises:
        ChangedError: if it does not begin where that ended.
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
    """Compares with the run that nothing disturbed.

    Raises:
        ChangedError: if anything is not the same.
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
    """Tokens that are not the same, at least one: if nothing else, the text or the end is another."""
    differing = sum(a != b for a, b in zip(outcomes, wanted, strict=False))
    return max(1, differing + abs(len(outcomes) - len(wanted)))


def _curable(error: grpc.aio.AioRpcError) -> bool:
    if error.code() in _BROKEN_CONNECTION:
        words = ("rst_stream", "stream removed", "reset", "closed", "goaway")
        return any(word in (error.details() or "").lower() for word in words)
    return error.code() in _CURABLE
