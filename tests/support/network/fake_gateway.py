"""A gRPC server that replaces a gateway: it serves one answer and fails by a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from specinfer.service.channel import channel_options
from specinfer.service.tls import ServerTls, server_credentials
from specinfer.v1 import generation_pb2, generation_pb2_grpc

Reply = generation_pb2.GenerateReply
TOKENS = tuple(range(100, 140))
"""The answer of every request; token 100 + i is the text "<i>"."""
PROMPT_TOKENS = 7
TEXT = "".join(f"<{token - 100}>" for token in TOKENS)


@dataclass(frozen=True)
class Turn:
    """Script of one call; by default it serves the whole answer."""

    accepts: bool = False
    """Send a first reply without tokens, which confirms the request."""
    replies: int | None = None
    """Number of replies before the failure; None: all."""
    code: grpc.StatusCode | None = None
    """End the call with this status."""
    details: str = ""
    hint_ms: str | None = None
    dies: bool = False
    """Stop the server at once."""
    ends: bool = False
    """End the stream with status OK, but without a summary."""
    raises: bool = False
    """Raise in the handler."""
    hangs: bool = False
    """Send nothing more."""
    back: int = 0
    """Start this number of tokens before the requested position."""
    skip: int = 0
    """Leave out this number of tokens after `replies`, then continue."""

    @property
    def fails(self) -> bool:
        """True if the answer is not sent completely."""
        return bool(self.code or self.dies or self.ends or self.raises or self.hangs)


@dataclass
class FakeGateway(generation_pb2_grpc.GenerationServicer):
    """Answers in replies of `size` tokens, and records the requests in `calls`."""

    script: list[Turn] = field(default_factory=list)
    """Scripts of the next calls of Generate and Attach; later calls succeed."""
    size: int = 1
    calls: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    on_death: Callable[[], Any] | None = None
    """Called and awaited after the server was stopped."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call hangs."""
    states: list[generation_pb2.StatusReply] = field(default_factory=list)
    """Successive answers of Status; the last one repeats."""
    refused: Turn | None = None
    """Status of refused Status calls."""
    silent: asyncio.Event | None = None
    """Status calls wait for this event."""
    tls: ServerTls | None = None
    """None: plaintext."""
    port: int = 0
    _server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Serve on loopback."""
        self._server = grpc.aio.server(options=channel_options())
        generation_pb2_grpc.add_GenerationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        place = f"127.0.0.1:{port}"
        if self.tls is None:
            self.port = self._server.add_insecure_port(place)
        else:
            self.port = self._server.add_secure_port(place, server_credentials(self.tls))
        await self._server.start()

    async def stop(self) -> None:
        """End all calls at once."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Generate(self, message: Any, context: Any) -> AsyncIterator[Reply]:
        """Stream the answer from its first token."""
        async for reply in self._play(message, 0, context):
            yield reply

    async def Attach(self, message: Any, context: Any) -> AsyncIterator[Reply]:
        """Stream the rest of the answer."""
        async for reply in self._play(message, message.from_token, context):
            yield reply

    async def Cancel(self, message: Any, context: Any) -> generation_pb2.CancelReply:
        """Record the cancelled request."""
        self.metadata.append(dict(context.invocation_metadata()))
        self.cancelled.append(message.request_id)
        return generation_pb2.CancelReply()

    async def Watch(self, message: Any, context: Any) -> AsyncIterator[generation_pb2.WatchReply]:
        """Send only the first event, without steps."""
        yield generation_pb2.WatchReply()
        self.reached.set()
        await asyncio.Event().wait()

    async def Status(self, message: Any, context: Any) -> generation_pb2.StatusReply:
        """Return the next of `states`; by default, a status with the address as gateway id."""
        self.metadata.append(dict(context.invocation_metadata()))
        if self.silent is not None:
            await self.silent.wait()
        if self.refused is not None:
            await self._fail(self.refused, context)
        if self.states:
            return self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return generation_pb2.StatusReply(gateway_id=self.address)

    async def _play(self, message: Any, start: int, context: Any) -> AsyncIterator[Reply]:
        self.calls.append(message)
        self.metadata.append(dict(context.invocation_metadata()))
        turn = self.script.pop(0) if self.script else Turn()
        replies = list(_replies(max(0, start - turn.back), self.size))
        count = len(replies) if turn.replies is None else min(turn.replies, len(replies) - 1)
        if turn.accepts:
            yield Reply(position=start, prompt_tokens=PROMPT_TOKENS)
        for reply in replies[:count]:
            yield reply
        if turn.fails:
            await self._fail(turn, context)
        else:
            for reply in replies[count + turn.skip :]:
                yield reply

    async def _fail(self, turn: Turn, context: Any) -> None:
        if turn.dies:
            asyncio.get_running_loop().create_task(self._die())
            await asyncio.Event().wait()
        if turn.hangs:
            self.reached.set()
            await asyncio.Event().wait()
        if turn.raises:
            raise KeyError("a fault of the gateway")
        if turn.code is not None:
            hint = () if turn.hint_ms is None else (("grpc-retry-pushback-ms", turn.hint_ms),)
            await context.abort(turn.code, turn.details, hint)

    async def _die(self) -> None:
        await self.stop()
        if self.on_death is not None:
            await self.on_death()


def _replies(start: int, size: int) -> Iterable[Reply]:
    for position in range(start, len(TOKENS), size):
        ids = TOKENS[position : position + size]
        yield Reply(position=position, token_ids=ids, text="".join(f"<{token - 100}>" for token in ids))
    summary = generation_pb2.Summary(
        prompt_tokens=PROMPT_TOKENS, new_tokens=len(TOKENS), finish_reason=generation_pb2.FINISH_REASON_LENGTH
    )
    yield Reply(position=max(start, len(TOKENS)), summary=summary)


@asynccontextmanager
async def fake_gateways(*scripts: Sequence[Turn], size: int = 1) -> AsyncIterator[list[FakeGateway]]:
    gateways = [FakeGateway(list(script), size) for script in scripts]
    for gateway in gateways:
        await gateway.start()
    try:
        yield gateways
    finally:
        for gateway in gateways:
            await gateway.stop()
