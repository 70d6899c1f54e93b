"""`AsyncLLM`: `LLM` for asyncio, decoding in a thread."""

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from specinfer.errors import UnavailableError
from specinfer.hub import DEFAULT_MODEL
from specinfer.llm.build import Speculators, build_engine
from specinfer.llm.driver import Driver, Prompt, Request, TextDelta
from specinfer.llm.engine import LocalEngine
from specinfer.llm.metrics import Metric
from specinfer.llm.options import LLMOptions
from specinfer.llm.outputs import RequestOutput, summary_of
from specinfer.llm.params import SamplingParams
from specinfer.request.answer import Item, Piece
from specinfer.request.fields import RequestFields
from specinfer.request.stream import AsyncStream
from specinfer.text.tokenizer import Tokenizer

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Reader:
    """A coroutine that waits for the new text of one request."""

    loop: asyncio.AbstractEventLoop
    deltas: "asyncio.Queue[list[TextDelta] | None]"
    """New text; None marks the request's end."""


class AsyncLLM:
    """A model with speculators, decoding in a thread of this process."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        draft: str | None = None,
        speculators: Speculators | None = None,
        **options: Any,
    ) -> None:
        """Load the model and its speculators; see `LLM`."""
        self._begin_thread(Driver(*build_engine(model, draft, speculators, LLMOptions.of(options))))

    @classmethod
    def of(cls, engine: LocalEngine, tokenizer: Tokenizer) -> Self:
        """Decode on an engine that `specinfer.llm.build.assemble` returned."""
        made = cls.__new__(cls)
        made._begin_thread(Driver(engine, tokenizer))
        return made

    def _begin_thread(self, driver: Driver) -> None:
        self._driver = driver
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._readers: dict[Request, _Reader] = {}
        self._closed = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="specinfer-llm", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        on_delta: Callable[[TextDelta], None] = lambda _: None,
    ) -> RequestOutput:
        """Answer a prompt. Concurrent calls are batched; cancellation ends the request.

        Args:
            request_id: id of the request in logs; seeds the random stream of speculators that draw.
            on_delta: called with each new piece of text.

        Raises:
            InvalidInputError: for an invalid field.
            SpecInferError: if a fault ended the request.
        """
        request, deltas = await self._submit(prompt, sampling_params, request_id)
        async for delta in self._deltas(request, deltas):
            on_delta(delta)
        return request.output

    async def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncIterator[TextDelta]:
        """Stream an answer's text; leaving the loop ends the request.

        Raises:
            InvalidInputError: for an invalid field.
            SpecInferError: if a fault ended the request.
        """
        request, deltas = await self._submit(prompt, sampling_params, request_id)
        async for delta in self._deltas(request, deltas):
            yield delta

    def ask(self, prompt: str, request: RequestFields) -> AsyncStream:
        """Return the stream of the answer to a prompt, as `Generator` does."""
        given: Prompt = {"messages": [{"role": "user", "content": prompt}]} if request.chat else prompt
        request_id = request.request_id or secrets.token_hex(12)
        return AsyncStream(request_id, self._items(given, SamplingParams.of(request), request_id))

    async def _items(
        self, prompt: Prompt, params: SamplingParams, request_id: str
    ) -> AsyncGenerator[Item, None]:
        request, deltas = await self._submit(prompt, params, request_id)
        (answer,) = request.answers
        count = 0
        async for delta in self._deltas(request, deltas):
            rows = (answer.output.logprobs or [])[count : count + len(delta.token_ids)]
            chosen = tuple(row[token].logprob for token, row in zip(delta.token_ids, rows, strict=False))
            yield Piece(count, tuple(delta.token_ids), delta.text, chosen)
            count += len(delta.token_ids)
        yield summary_of(request.output, answer.state, self.speculators)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestOutput:
        """Answer a conversation of OpenAI's messages, as `generate` does."""
        shared = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
        return await self.generate({"messages": messages, **shared}, sampling_params)

    @property
    def speculators(self) -> list[str]:
        return self._driver.engine.pool.names

    def get_metrics(self) -> list[Metric]:
        """Return the counters since the start."""
        return self._driver.engine.metrics()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of prompts without any, from `generation_config.json`."""
        return self._driver.default_params

    async def close(self) -> None:
        """End running requests with an error, and free the model."""
        if not self._closed and self._driver.own_process:
            self._closed = True
            self._work.put(lambda: None)
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _submit(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str | None
    ) -> tuple[Request, "asyncio.Queue[list[TextDelta] | None]"]:
        constraint = params.constraint if params is not None else None
        if constraint is not None:  # compiled while other requests decode
            compiling = await asyncio.wrap_future(self._call(lambda: self._driver.engine.compile(constraint)))
            if compiling is not None:
                await asyncio.wait([asyncio.wrap_future(compiling)])
        return await self._begin(lambda: self._driver.submit(prompt, params, request_id))

    async def _begin(
        self, submit: Callable[[], Request]
    ) -> tuple[Request, "asyncio.Queue[list[TextDelta] | None]"]:
        """Submit a request on the decoding thread; cancellation ends the request."""
        deltas: asyncio.Queue[list[TextDelta] | None] = asyncio.Queue()
        reader = _Reader(asyncio.get_running_loop(), deltas)

        def begin() -> Request:
            request = submit()
            self._readers[request] = reader
            return request

        future = self._call(begin)
        try:
            return await asyncio.wrap_future(future), deltas
        except asyncio.CancelledError:
            self._work.put(lambda: self._drop(future))
            raise

    async def _deltas(
        self, request: Request, deltas: "asyncio.Queue[list[TextDelta] | None]"
    ) -> AsyncIterator[TextDelta]:
        try:
            while (pieces := await deltas.get()) is not None:
                for delta in pieces:
                    yield delta
        finally:
            if not request.finished:
                self._work.put(lambda: self._cancel(request))
        if request.error is not None:
            raise request.error

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` on the decoding thread, between two steps."""
        if self._closed:
            raise UnavailableError("this AsyncLLM is closed: create a new one")
        self._driver.check_process()
        if self._fault is not None:
            raise UnavailableError(
                f"this AsyncLLM has failed, create a new one: {self._fault}"
            ) from self._fault
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  # the caller gets it from the future
                future.set_exception(error)

        self._work.put(run)
        return future

    def _run(self) -> None:
        """Run callers' work and decoding steps on this thread until closed."""
        try:
            while not self._closed:
                self._take_work(wait=not self._driver.busy)
                if self._driver.busy:
                    for request in self._driver.step():
                        self._show(request)
        except Exception as error:  # any fault: callers must not wait for ever
            log.exception("decoding failed; all requests end with this error")
            self._fault = error
        finally:
            self._end_all()
            self._driver.engine.close()

    def _take_work(self, wait: bool) -> None:
        if wait:
            self._work.get()()
        while not self._work.empty():
            self._work.get()()

    def _show(self, request: Request) -> None:
        """Pass a request's new text to the coroutine that waits for it."""
        reader = self._readers.get(request)
        if reader is None:
            return
        deltas = request.take()
        if deltas:
            _put(reader, deltas)
        if request.finished:
            del self._readers[request]
            _put(reader, None)

    def _cancel(self, request: Request) -> None:
        self._readers.pop(request, None)
        self._driver.cancel(request)

    def _drop(self, future: "Future[Request]") -> None:
        """Cancel a request whose caller has left."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self._cancel(future.result())

    def _end_all(self) -> None:
        """End every request with an error, including requests not submitted yet."""
        while not self._work.empty():
            self._work.get()()
        error = self._fault or UnavailableError("this AsyncLLM is closed")
        for request, reader in self._readers.items():
            request.error = error
            _put(reader, None)
        self._readers.clear()


def _put(reader: _Reader, deltas: list[TextDelta] | None) -> None:
    with contextlib.suppress(RuntimeError):  # its event loop has ended
        reader.loop.call_soon_threadsafe(reader.deltas.put_nowait, deltas)
