"""Publish durable tokens to token streams, events and watches."""

import logging
from collections.abc import Iterable, Sequence

from gateway.api.watch.watches import Watches
from gateway.events import Events
from gateway.session.token_stream import TokenStreams
from specinfer.errors import SpecInferError
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress

log = logging.getLogger(__name__)


class Publisher:
    """Publishes a session's stored tokens; an exception ends only the stream."""

    def __init__(
        self, token_streams: TokenStreams, events: Events, names: Sequence[str], watches: Watches
    ) -> None:
        """Create a publisher; `names[i]` is the name of speculator i."""
        self._token_streams, self._events, self._names, self._watches = (
            token_streams,
            events,
            names,
            watches,
        )

    def publish(self, item: Progress) -> None:
        """Publish stored new tokens of a request, or its stored `Ending`."""
        item.published = True
        self.tell(item)
        token_stream = self._token_streams.get(item.request_id)
        if token_stream is None or token_stream.failure is not None:
            return
        try:
            ending = Ending.of(item.state, self._names) if item.final else None
            token_stream.extend(item.start, item.tokens, item.logprobs, ending)
        except Exception as error:  # noqa: BLE001  # any fault ends only this gateway's stream
            self.break_off(item.request_id, self._events.report_fault(item.request_id, error))
        self._token_streams.forget_if_idle(token_stream)

    def tell(self, item: Progress) -> None:
        """Pass a request's progress to `events`."""
        try:
            self._events.progress_stored(item)
        except Exception:  # metrics must not lose tokens
            log.exception("an event could not be counted; the metrics miss it")

    def show(self, delivered: Iterable[tuple[Sequence[Progress], FinishedStep | None]]) -> None:
        """Send published steps to the gateway's `Watch` calls."""
        if not self._watches:
            return
        for progress, step in delivered:
            self._watches.tell(step, [item for item in progress if item.published], self._names)

    def break_off(self, request_id: str, reason: str) -> None:
        """End a request's streams at this gateway after an internal fault."""
        token_stream = self._token_streams.get(request_id)
        if token_stream is not None:
            token_stream.fail(SpecInferError(reason))
            self._token_streams.moved([request_id])
