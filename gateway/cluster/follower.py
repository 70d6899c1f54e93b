"""Reads other gateways' requests for local clients."""

import asyncio
import logging
import time

from gateway.events import Events
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.store.reading import RequestReader
from gateway.store.records import Known
from specinfer.errors import FaultError, NotFoundError, SpecInferError, UnavailableError
from specinfer.system.log_lines import LogPace, about

log = logging.getLogger(__name__)
_INTERVAL_S = 0.025
"""Polling interval, about one step.

A poll takes 50 us, and 5 us per request.
"""
_MISSING_S = 10.0
"""Time for which a request may be missing from Redis.

After Redis lost its data, its gateway writes it again.
"""


class Follower:
    """Fills the token_streams that no session of this gateway fills."""

    def __init__(self, token_streams: TokenStreams, store: RequestReader, events: Events) -> None:
        self._token_streams, self._store, self._events = token_streams, store, events
        self._missing_since: dict[str, float] = {}
        self._pace = LogPace()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            followed = self._token_streams.followed()
            if not followed:
                continue
            try:
                await self._look(followed)
            except UnavailableError:
                continue  # the renewal of leases logs it; the token_streams continue when Redis answers
            except Exception:  # a fault of ours: the next look may go better
                if self._pace.due(time.monotonic()):
                    log.exception("following %d requests failed", len(followed))
                self._events.cluster_failed()

    async def _look(self, followed: dict[str, TokenStream]) -> None:
        positions = {
            request_id: Known(len(token_stream.tokens), token_stream.request.top_logprobs)
            for request_id, token_stream in followed.items()
        }
        for request_id, glimpse in (await self._store.glimpse(positions)).items():
            token_stream = followed[request_id]
            if token_stream.local or token_stream.ending is not None:
                continue  # a session took it meanwhile
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
        now = time.monotonic()
        if now - self._missing_since.setdefault(request_id, now) > _MISSING_S:
            del self._missing_since[request_id]
            log.warning("request %s is not in Redis any more", request_id)
            token_stream.fail(NotFoundError(f"request_id = {request_id!r}: no gateway knows it any more"))
