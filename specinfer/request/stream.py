"""Read a stream of pieces, and collect the answer."""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Protocol, Self

from specinfer.request.answer import Accepted, Answer, Item, Piece, Summary
from specinfer.request.fields import RequestFields


class AsyncStream:
    """An answer's pieces: an async iterator and context manager.

    Leaving the context, or `aclose`, closes the connection. The request itself continues for the gateway's
    `linger_seconds`, and `attach` can continue the stream. `AsyncClient.cancel` ends the request.
    """

    def __init__(self, request_id: str, items: AsyncGenerator[Item, None]) -> None:
        self._items = items
        self._started: float | None = None
        self._first: Item | None = None
        """First item, if only `accepted` has read it."""
        self._first_count = 0
        self.answer = Answer(request_id=request_id)
        """Answer so far; with a summary once the stream has ended."""

    @property
    def request_id(self) -> str:
        """The request's id, for `attach` and `cancel`."""
        return self.answer.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece.

        Raises:
            RequestFailedError: if a gateway refused or ended the request.
            StreamLostError: if no gateway continued the request within the patience.
            BrokenStreamError: if tokens are missing or repeated.
        """
        started = self._start()
        while True:
            item = await anext(self._items) if self._first is None else self._first
            self._first = None
            if isinstance(item, Piece):
                self._add(item, time.perf_counter() - started)
                return item
            self._note(item)

    async def accepted(self) -> None:
        """Wait until a gateway has accepted the request. Call before reading pieces.

        Raises:
            SpecInferError: the errors of reading a piece.
        """
        self._start()
        item = await anext(self._items)
        if isinstance(item, Piece):
            self._first = item
        else:
            self._note(item)

    def _start(self) -> float:
        """Return the time of the first read, in `perf_counter` seconds."""
        if self._started is None:
            self._started = time.perf_counter()
        return self._started

    def _note(self, item: Accepted | Summary) -> None:
        if isinstance(item, Summary):
            self.answer.summary = item
        else:
            self.answer.summary = replace(self.answer.summary, prompt_tokens=item.prompt_tokens)
            self.answer.begins_in_reasoning = item.begins_in_reasoning

    async def read(self, on_text: Callable[[str], None] = lambda _: None) -> Answer:
        """Read to the end; call `on_text` with each piece; return the answer."""
        async for piece in self:
            if piece.text:
                on_text(piece.text)
        return self.answer

    async def aclose(self) -> None:
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _add(self, piece: Piece, seconds: float) -> None:
        """Add a piece that arrived `seconds` after the request was sent."""
        answer = self.answer
        if not answer.token_ids and not answer.text:
            answer.ttft_s, self._first_count = seconds, len(piece.token_ids)
        answer.token_ids.extend(piece.token_ids)
        answer.logprobs.extend(piece.logprobs)
        answer.token_logprobs.extend(piece.token_logprobs)
        answer.text += piece.text
        later = len(answer.token_ids) - self._first_count
        if piece.token_ids and later:
            answer.tpot_s = (seconds - answer.ttft_s) / later


class Generator(Protocol):
    """Answers requests: a client of gateways, or a model in this process."""

    def ask(self, prompt: str, request: RequestFields) -> AsyncStream:
        """Return an answer's stream. Reading its first piece starts the request."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...
