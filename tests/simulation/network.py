"""In-process calls with latency, losses and outages.

A message that was sent arrives even if its sender dies or gives up. A lost request or reply ends the call with
UNAVAILABLE, or is never answered.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, NoReturn

import grpc

from specinfer.service.in_process import InProcessServer
from tests.simulation.loop import Process, SimulatedLoop, here

_ENDED = object()
_LATENCY_S = (0.0002, 0.004)
_SILENT_S = 40.0
"""Seconds until unanswered pings end a silent connection."""


class Network:
    """Delivers all messages of a world."""

    def __init__(self, loop: SimulatedLoop, draw: Random) -> None:
        self._loop, self._draw = loop, draw
        self.carrier = Process(loop, "network")
        """Messages on their way belong to nobody."""
        self.slow_until: dict[str, float] = {}
        """Times until which messages to and from a process take up to a second, by its name."""
        self.cut_until: dict[str, float] = {}
        """Times until which a process cannot be reached, by its name."""
        self.lose: dict[str, int] = {}
        """Number of next exchanges with a process that fail, by its name."""

    def latency(self, name: str) -> float:
        """Return the seconds that the next message to or from a process takes."""
        if self._loop.time() < self.slow_until.get(name, 0.0):
            return self._draw.uniform(0.05, 1.0)
        return self._draw.uniform(*_LATENCY_S)

    def fate(self, server: Process) -> str:
        """Draw an exchange's fate: "", "before", "after" (without its reply) or "silent"."""
        if not server.alive or self._loop.time() < self.cut_until.get(server.name, 0.0):
            return "before"
        if self.lose.get(server.name, 0) > 0:
            self.lose[server.name] -= 1
            return self._draw.choice(["before", "after", "silent"])
        return ""


def unavailable(details: str) -> NoReturn:
    """Raise the error of a call whose peer cannot be reached."""
    raise grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details
    )


class Server(InProcessServer):
    """In-process server of a simulated process."""

    def __init__(self, name: str, process: Process, network: Network) -> None:
        super().__init__(name)
        self._process, self._network = process, network

    def method(self, path: str) -> Any:
        """Return the handler of a method, which calls it through the network."""
        handler = super().method(path)
        return handler and _Relay(handler, self._process, self._network)


class _Relay:
    """A method's handler, called from other processes."""

    def __init__(self, handler: Any, process: Process, network: Network) -> None:
        self._handler, self._process, self._network = handler, process, network

    async def unary_unary(self, request: Any, context: Any) -> Any:
        fate, network = self._network.fate(self._process), self._network
        answer = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            try:
                _settle(answer, await self._handler.unary_unary(request, context))
            except Exception as error:  # noqa: BLE001  # passed to the caller
                _settle(answer, error)

        async def carry() -> None:
            await asyncio.sleep(network.latency(self._process.name))
            if self._process.alive and fate != "before":
                self._process.start(serve())

        network.carrier.start(carry())
        if fate in ("before", "after"):
            await asyncio.sleep(0.02)
            unavailable("the connection was lost")
        if fate == "silent":
            await asyncio.sleep(_SILENT_S)
            unavailable("no answer to a ping")
        try:
            reply = await _or_death(answer, self._process)
        finally:
            await asyncio.sleep(network.latency(self._process.name))
        return reply

    async def unary_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for reply in self._stream(lambda outer: self._handler.unary_stream(request, outer), context):
            yield reply

    async def stream_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        lost: list[str] = []

        async def inner() -> AsyncIterator[Any]:
            while (request := await inbox.get()) is not _ENDED:
                yield request

        async def send() -> None:
            async for request in requests:
                fate = self._network.fate(self._process)
                lost.append(fate)

                async def carry(request: Any = request, fate: str = fate) -> None:
                    await asyncio.sleep(self._network.latency(self._process.name))
                    if fate != "before":
                        inbox.put_nowait(request)

                self._network.carrier.start(carry())

        caller = here()
        sender = caller.start(send()) if caller is not None else asyncio.ensure_future(send())
        try:
            async for reply in self._stream(
                lambda outer: self._handler.stream_stream(inner(), outer), context, lost
            ):
                yield reply
        finally:
            sender.cancel()
            inbox.put_nowait(_ENDED)

    async def _stream(
        self, begin: Callable[[Any], Any], context: Any, lost: list[str] | None = None
    ) -> AsyncIterator[Any]:
        """Yield a method's replies; each request has one reply if `lost` has the requests' fates."""
        outbox: asyncio.Queue[Any] = asyncio.Queue(maxsize=4)
        lost = [self._network.fate(self._process)] if lost is None else lost
        task: list[asyncio.Task[None]] = []
        gone = False

        async def serve() -> None:
            try:
                replies = begin(_Context(context, outbox))
                if inspect.isasyncgen(replies):
                    async for reply in replies:
                        await outbox.put(reply)
                else:
                    await replies
                await outbox.put(_ENDED)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  # passed to the caller
                await outbox.put(error)

        async def carry() -> None:
            await asyncio.sleep(self._network.latency(self._process.name))
            if self._process.alive:
                task.append(self._process.start(serve()))
                if gone:
                    task[0].cancel()

        self._network.carrier.start(carry())
        try:
            while True:
                reply = await self._next(outbox, lost)
                if reply is _ENDED:
                    return
                if isinstance(reply, BaseException):
                    raise reply
                await asyncio.sleep(self._network.latency(self._process.name))
                yield reply
        finally:
            gone = True
            for running in task:
                self._network.carrier.start(_hang_up(running, self._network.latency(self._process.name)))

    async def _next(self, outbox: "asyncio.Queue[Any]", lost: list[str]) -> Any:
        """Return the next reply; raise UNAVAILABLE once the process is dead or a message is lost."""
        while True:
            fate = next((fate for fate in lost if fate), "")
            if fate:
                await asyncio.sleep(_SILENT_S if fate == "silent" else 0.02)
                unavailable("the connection was lost")
            try:
                async with asyncio.timeout(0.05):
                    reply = await outbox.get()
            except TimeoutError:
                if not self._process.alive:
                    unavailable("the connection was reset")
                continue
            return reply


class _Context:
    """A servicer's context: the caller's, but its replies go to the relay."""

    def __init__(self, context: Any, outbox: "asyncio.Queue[Any]") -> None:
        self._context, self._outbox = context, outbox
        self.abort = context.abort

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()

    async def write(self, reply: Any) -> None:
        await self._outbox.put(reply)


def _settle(answer: "asyncio.Future[Any]", result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
        answer.exception()  # its caller may have left
    else:
        answer.set_result(result)


async def _or_death(answer: "asyncio.Future[Any]", process: Process) -> Any:
    """Return the answer; raise UNAVAILABLE if the process dies before."""
    while not answer.done():
        await asyncio.wait([answer], timeout=0.05)
        if not answer.done() and not process.alive:
            unavailable("the connection was reset")
    return answer.result()


async def _hang_up(running: "asyncio.Task[None]", seconds: float) -> None:
    """Let a servicer see that its client has left."""
    await asyncio.sleep(seconds)
    running.cancel()
