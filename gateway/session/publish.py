"""Own a run's unsent tokens, and publish them to streams, events and watches.

A run is one adoption of a request by a session. A request that returns to its gateway gets a new adoption, a new
`RequestState` and a new run. Invariant: only an open run stores, publishes, fails or releases anything, and a closed
run never opens again. So nothing of a dropped run reaches clients or the store in the place of its successor's tokens.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.api.watch.watches import Watches
from gateway.events import Events
from gateway.session.token_stream import TokenStream
from specinfer.errors import SpecInferError
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress, united
from specinfer.scheduling.request import RequestState

log = logging.getLogger(__name__)


class RequestRun:
    """One adoption of a request by a session."""

    def __init__(self, state: RequestState, token_stream: TokenStream) -> None:
        """Open a run, which fills `token_stream`."""
        self.state, self.token_stream, self.open = state, token_stream, True
        self._unsent: list[Progress] = []
        token_stream.run = self

    @property
    def request_id(self) -> str:
        return self.state.request.request_id

    def add(self, item: Progress) -> None:
        """Queue the next tokens of the run."""
        self._unsent.append(item)

    def take(self) -> "Unsent | None":
        """Return the queued tokens and empty the queue; None without any."""
        items, self._unsent = self._unsent, []
        return Unsent(self, items) if items else None

    def close(self) -> None:
        """End the run and drop its queue."""
        self.open = False
        self._unsent.clear()
        if self.token_stream.run is self:
            self.token_stream.run = None


class Unsent(NamedTuple):
    """Consecutive new tokens of one run, to be stored by one write."""

    run: RequestRun
    items: Sequence[Progress]
    """The tokens by step, at least one item."""

    @property
    def progress(self) -> Progress:
        """The tokens of all steps as one item."""
        return united(self.items)


class Publisher:
    """Publishes a session's stored tokens; an exception ends only the stream."""

    def __init__(self, events: Events, names: Sequence[str], watches: Watches) -> None:
        """Create a publisher; `names[i]` is the name of speculator i."""
        self._events, self._names, self._watches = events, names, watches

    def publish(self, run: RequestRun, item: Progress) -> None:
        """Publish stored new tokens of a run, or its stored `Ending`."""
        item.published = True
        self.report_stored(item)
        token_stream = run.token_stream
        if token_stream.failure is not None:
            return
        try:
            ending = Ending.of(item.state, self._names) if item.final else None
            if not token_stream.extend(item.start, item.tokens, item.logprobs, ending):
                self._events.gap_refused(item.request_id, len(token_stream.tokens), item.start)
        except Exception as error:  # noqa: BLE001  # any fault ends only this gateway's stream
            self.break_off(run, self._events.report_fault(item.request_id, error))

    def report_stored(self, item: Progress) -> None:
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
            self._watches.publish(step, [item for item in progress if item.published], self._names)

    def break_off(self, run: RequestRun, reason: str) -> None:
        """End the readers of a run's stream after an internal fault."""
        run.token_stream.fail(SpecInferError(reason))
