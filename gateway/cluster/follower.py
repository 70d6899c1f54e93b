"""Read other gateways' requests from Redis for local clients."""

import asyncio
import logging
from collections.abc import Callable

from gateway.events import Count, Events
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.store.protocol import Store
from gateway.store.records import Known
from specinfer.errors import FaultError, NotFoundError, SpecInferError, UnavailableError
from specinfer.system.log_lines import LogPace, about

log = logging.getLogger(__name__)
_INTERVAL_S = 0.025
"""Seconds between two polls of Redis, about one step.

A poll takes 50 us plus 5 us per request.
"""
_MISSING_S = 10.0
"""Seconds after which the streams of a request missing in Redis end.

If Redis lost its data, the request's gateway writes it again.
"""


class Follower:
    """Fills token streams of local clients whose requests run at other gateways."""

    def __init__(
        self,
        token_streams: TokenStreams,
        store: Store,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        """Create a follower; `clock` returns monotonic seconds."""
        self._token_streams, self._store, self._events = token_streams, store, events
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        self._pace = LogPace()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            followed = self._token_streams.followed()
            if not followed:
                continue
            try:
                await self._look(followed)
            except UnavailableError:
                continue  # the renewal of leases logs the outage; streams continue when Redis answers
            except Exception:  # an internal fault must not end the following
                if self._pace.due(self._clock()):
                    log.exception("%d requests could not be read from Redis; trying again", len(followed))
                self._events.add(Count.KEEPER_FAULTS)

    async def _look(self, followed: dict[str, TokenStream]) -> None:
        positions = {
            request_id: Known(len(token_stream.tokens), token_stream.request.top_logprobs)
            for request_id, token_stream in followed.items()
        }
        for request_id, glimpse in (await self._store.glimpse(positions)).items():
            token_stream = followed[request_id]
            if not token_stream.followed:
                continue  # a session of this gateway adopted the request during the poll, or its readers left
            if glimpse is None:
                self._note_missing(request_id, token_stream)
                continue
            self._missing_since.pop(request_id, None)
            if isinstance(glimpse, FaultError):
                log.error("%s", glimpse.for_logs, extra=about(request_id))
                token_stream.fail(SpecInferError(glimpse.for_logs))
                continue
            if glimpse.tokens or glimpse.ending:
                token_stream.extend(
                    positions[request_id].tokens, glimpse.tokens, glimpse.logprobs, glimpse.ending
                )
                self._token_streams.forget_if_idle(token_stream)

    def _note_missing(self, request_id: str, token_stream: TokenStream) -> None:
        now = self._clock()
        if now - self._missing_since.setdefault(request_id, now) > _MISSING_S:
            del self._missing_since[request_id]
            log.warning("request %s is missing in Redis: its streams end", request_id)
            token_stream.fail(NotFoundError(f"request_id = {request_id!r}: lost, no gateway has it any more"))
