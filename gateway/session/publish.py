"""Tells of what has become durable: to the streams of this gateway, to operators, and to whoever watches."""

import logging
from collections.abc import Iterable, Sequence

from gateway.api.watch.watches import Watches
from gateway.observability.observer import Journal
from gateway.session.token_stream import Feeds
from specinfer.errors import SpecInferError
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress

log = logging.getLogger(__name__)


class Publisher:
    """One lane's. A fault in it costs a stream, never the lane."""

    def __init__(self, feeds: Feeds, journal: Journal, names: Sequence[str], watches: Watches) -> None:
        """`names` are those of the speculators, by number."""
        self._feeds, self._journal, self._names, self._watches = feeds, journal, names, watches

    def publish(self, item: Progress) -> None:
        """Shows new tokens of a request, or its end, which are stored."""
        item.published = True
        self.tell(item)
        feed = self._feeds.get(item.request_id)
        if feed is None or feed.failure is not None:
            return
        try:
            ending = Ending.of(item.state, self._names) if item.final else None
            feed.extend(item.start, item.tokens, item.logprobs, ending)
        except Exception as error:  # noqa: BLE001  # who reads it elsewhere, or comes back, may still get it
            self.break_off(item.request_id, self._journal.fault(item.request_id, error))
        self._feeds.forget_if_idle(feed)

    def tell(self, item: Progress) -> None:
        """Counts and logs it; nothing depends on that."""
        try:
            self._journal.progress(item)
        except Exception:  # figures are missing then, no tokens
            log.exception("what a step brought is not counted")

    def show(self, delivered: Iterable[tuple[Sequence[Progress], FinishedStep | None]]) -> None:
        """Shows steps to those who watch, as far as what they brought is published."""
        if not self._watches:
            return
        for progress, step in delivered:
            self._watches.tell(step, [item for item in progress if item.published], self._names)

    def break_off(self, request_id: str, why: str) -> None:
        """Ends a request's streams at this gateway, by a fault of ours."""
        feed = self._feeds.get(request_id)
        if feed is not None:
            feed.fail(SpecInferError(why))
            self._feeds.moved([request_id])
