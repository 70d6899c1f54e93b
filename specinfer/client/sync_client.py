"""Provide the client without an event loop: `AsyncClient` in a thread."""

from collections.abc import Callable, Sequence
from typing import Self, Unpack

from specinfer.client.async_client import AsyncClient
from specinfer.client.gateways import CLOSED
from specinfer.client.options import RequestOptions, shows_options
from specinfer.client.request import Prompt
from specinfer.client.resume import Patience, Retry
from specinfer.request.answer import Answer, Piece
from specinfer.request.stream import AsyncStream
from specinfer.service.threads import LoopThread
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2


class Stream:
    """An answer's pieces: an iterator and context manager."""

    def __init__(self, stream: AsyncStream, thread: LoopThread) -> None:
        self._stream, self._thread = stream, thread

    @property
    def answer(self) -> Answer:
        """Answer so far; with a summary once the stream has ended."""
        return self._stream.answer

    @property
    def request_id(self) -> str:
        """The request's id, for `attach` and `cancel`."""
        return self._stream.request_id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        """Return the next piece; raise the errors of `AsyncStream`."""
        piece = self._thread.call(self._next())
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Close the connection, unless the client is already closed."""
        if not self._thread.stopped:
            self._thread.call(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _next(self) -> Piece | None:
        return await anext(self._stream, None)


class Client:
    """Client of the first available gateway; a thread-safe context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        api_key: str | None = None,
        tls: ClientTls | None = None,
        *,
        patience: Patience | None = None,
        on_retry: Callable[[Retry], None] = lambda _: None,
        traceparent: str = "",
    ) -> None:
        """Create a client as `AsyncClient` does; `on_retry` is called in another thread."""
        self._client = AsyncClient(
            addresses, api_key, tls, patience=patience, on_retry=on_retry, traceparent=traceparent
        )
        self._thread = LoopThread("specinfer-client", CLOSED)

    @shows_options
    def stream(
        self, prompt: Prompt | generation_pb2.GenerateRequest, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Return the stream of `AsyncClient.stream`."""
        return Stream(self._client.stream(prompt, **options), self._thread)

    def attach(self, request_id: str, from_token: int = 0) -> Stream:
        """Return the stream of `AsyncClient.attach`."""
        return Stream(self._client.attach(request_id, from_token), self._thread)

    @shows_options
    def generate(
        self,
        prompt: Prompt | generation_pb2.GenerateRequest,
        on_text: Callable[[str], None] = lambda _: None,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """Return the answer of `AsyncClient.generate`; `on_text` is called in another thread."""
        return self._thread.call(self._client.generate(prompt, on_text, **options))

    def cancel(self, request_id: str) -> None:
        """Stop a request as `AsyncClient.cancel` does."""
        self._thread.call(self._client.cancel(request_id))

    def status(self) -> generation_pb2.StatusReply:
        """Return the state of `AsyncClient.status`."""
        return self._thread.call(self._client.status())

    def close(self) -> None:
        """Close all connections, and end the thread."""
        if not self._thread.stopped:
            self._thread.call(self._client.close())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
