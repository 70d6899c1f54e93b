"""What happens to a step beside the next one: it is learnt from, stored, and published. In this order of
steps.

Invariant: a token is durable before a client sees it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.metrics import GatewayMetrics
from gateway.planning.feedback import FinishedStep
from gateway.requests.request import GenerationRequest, RequestState
from gateway.requests.scheduler import Scheduler
from gateway.requests.step import Progress
from gateway.requests.store import RequestStore
from gateway.requests.subscribers import Subscribers, Update
from gateway.requests.text import TextStream
from specinfer.errors import UnavailableError
from specinfer.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_MOST_WAITING = 64
"""Steps that may wait for the store before the loop waits too."""


class _Delivery(NamedTuple):
    progress: list[tuple[Progress, str | None]]
    """With its text, or None where that can be found later."""
    step: FinishedStep | None
    """To learn from; None if requests ended between steps."""


class Deliveries:
    """The queue between the loop and everybody who waits for tokens."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: RequestStore,
        tokenizer: Tokenizer,
        metrics: GatewayMetrics,
        learn: Callable[[FinishedStep], None],
        release: Callable[[list[str]], None],
    ) -> None:
        """`learn` is told every finished step, `release` the requests that have ended."""
        self._scheduler, self._store, self._tokenizer, self._metrics = scheduler, store, tokenizer, metrics
        self._learn, self._release = learn, release
        self._texts: dict[str, TextStream] = {}
        self._waiting: asyncio.Queue[_Delivery] = asyncio.Queue(_MOST_WAITING)
        self.subscribers = Subscribers()
        self.new_tokens = 0

    def open(self, request: GenerationRequest) -> "asyncio.Queue[Update]":
        """From now on a request's tokens are published; returns the queue of its updates."""
        self._texts[request.request_id] = TextStream(self._tokenizer, request.stop_strings)
        return self.subscribers.subscribe(request.request_id)

    async def put(self, progress: Sequence[Progress], step: FinishedStep | None = None) -> None:
        """Hands on what a step brought; waits only if the store is far behind.

        A stop string ends a request, which the next plan must know: where there are any, text comes first.
        """
        found = [(item, self._text(item) if item.state.request.stop_strings else None) for item in progress]
        if found or step:
            await self._waiting.put(_Delivery(found, step))

    async def run(self) -> None:
        """Delivers until cancelled; what has gathered meanwhile is stored at once."""
        while True:
            waiting = [await self._waiting.get()]
            await asyncio.sleep(0)  # the drafts of the next step are asked for first
            while not self._waiting.empty():
                waiting.append(self._waiting.get_nowait())
            for _, step in waiting:
                if step is not None:
                    self._learn_from(step)
            found = [
                (item, self._text(item) if text is None else text)
                for progress, _ in waiting
                for item, text in progress
            ]
            if found:
                await self._store_and_publish(found)

    def _learn_from(self, step: FinishedStep) -> None:
        try:
            self._metrics.observe_step(step)
            self._learn(step)
        except Exception:  # what is learnt makes steps faster, not right
            log.exception("nothing is learnt from a step")
            self._metrics.failed_steps.inc()

    async def _store_and_publish(self, found: list[tuple[Progress, str]]) -> None:
        try:
            await self._store.append([item for item, _ in found])
        except UnavailableError as error:
            log.error("%s; ending %d requests", error, len(found))
            lost = {item.state.request.request_id: item.state for item, _ in found}
            open_states = [state for state in lost.values() if state.finish is None]
            ended = self._scheduler.fail(open_states, str(error), time.monotonic())
            found += [(item, "") for item in ended]
        for item, text in found:
            self._publish(item, text)
        ended_ids = [item.state.request.request_id for item, _ in found if item.final]
        for request_id in ended_ids:
            self._texts.pop(request_id, None)
        if ended_ids:
            self._release(ended_ids)

    def _text(self, item: Progress) -> str:
        stream = self._texts.get(item.state.request.request_id)
        if stream is None:
            return ""
        piece = stream.push(item.tokens, last=item.final)
        if piece.stopped:
            self._scheduler.cut(item, piece.used, time.monotonic())
        return piece.text

    def _publish(self, item: Progress, text: str) -> None:
        state: RequestState = item.state
        self.new_tokens += len(item.tokens)
        final = state if item.final else None
        self._metrics.observe_progress(item)
        if item.tokens or text or final:
            update = Update(item.tokens, text, item.logprobs, final)
            self.subscribers.publish(state.request.request_id, update)
