"""Who listens to which request: one queue per client stream."""

import asyncio
from dataclasses import dataclass, field

from gateway.requests.request import RequestState


@dataclass(frozen=True, slots=True)
class Update:
    """One message to a client; `final` is the request's state once it is finished."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    final: RequestState | None = None


class Subscribers:
    """Queues by request id."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[Update]] = {}

    def subscribe(self, request_id: str) -> "asyncio.Queue[Update]":
        """The queue on which updates of a request arrive."""
        return self._queues.setdefault(request_id, asyncio.Queue())

    def unsubscribe(self, request_id: str) -> None:
        """Nobody listens any more."""
        self._queues.pop(request_id, None)

    def publish(self, request_id: str, update: Update) -> None:
        """Delivers an update; without a listener it is dropped (it is in the store)."""
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(update)
