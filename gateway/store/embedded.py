"""Store a single gateway's requests in memory, and optionally a file.

Without Redis there are no other gateways. Each change is written to the file before it is visible here; the file
survives a crash of the process, not of the machine. A failed write changes nothing and is repeated, as with an
unavailable Redis. When a store opens an existing file, unfinished requests have no owner, and the gateway adopts
them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.journal import Journal
from gateway.store.records import Glimpse, Known, Record
from gateway.store.requests import RequestStore, Written
from gateway.store.stored_request import Change, Delivery, Line, StoredRequest, end_line, gone_line
from specinfer.errors import (
    AlreadyExistsError,
    ExhaustedError,
    FaultError,
    NotFoundError,
)
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

log = logging.getLogger(__name__)
_MINUTE_S = 60.0


class EmbeddedStore(RequestStore):
    """Store of the only gateway's requests."""

    name = "the store"

    def __init__(
        self,
        gateway_id: str,
        retention_s: int,
        max_unowned: int = 1024,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a store; with `path`, read that file and append to it."""
        self.gateway_id = gateway_id
        self._retention_s, self._max_unowned, self._clock = retention_s, max_unowned, clock
        self._entries: dict[str, StoredRequest] = {}
        self._open: dict[str, set[str]] = {}
        """Ids of unfinished requests by caller."""
        self._rates: dict[str, deque[tuple[float, int]]] = {}
        """(time in seconds, generated tokens) within the last minute, by caller."""
        now = clock()
        self._journal = Journal(path, self._entries, now, now - retention_s) if path is not None else None
        for name, entry in self._entries.items():
            if entry.ending is None:
                self._open.setdefault(entry.request.caller, set()).add(name)

    async def create(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool
    ) -> bool:
        if not self._may(request.request_id, idempotency_key, caller):
            return False
        if not owned and sum(map(self._is_waiting, self._entries.values())) >= self._max_unowned:
            raise ExhaustedError(f"queue full: {self._max_unowned} requests wait for a gateway, the maximum")
        now = self._clock()
        entry = StoredRequest(request, idempotency_key, now, owned, unowned_since=now)
        self._write([entry.created_line()])
        self._entries[request.request_id] = entry
        self._open.setdefault(caller.name, set()).add(request.request_id)
        return True

    async def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        """Raise the errors with which `create` would refuse the caller now."""
        self._may(request_id, idempotency_key, caller)

    async def append(self, progress: Sequence[Progress], names: Sequence[str], model: str) -> list[Written]:
        written, rest = list[Written](), list(progress)
        while rest:
            together = list(takewhile(_new_ids(), rest))  # a change is made from the request's present tokens
            changes = [self._change(item, names, model) for item in together]
            self._write([line for change in changes for line in change.lines])
            written += map(self._apply, changes)
            del rest[: len(together)]
        return written

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, now: float
    ) -> Written:
        """Return OK: this store loses no requests."""
        return Written.OK

    async def adopt(self, max_count: int, models: Sequence[str]) -> list[Record]:
        """Adopt at most `max_count` unowned requests, the oldest first."""
        now = self._clock()
        waiting = [e for e in self._entries.values() if self._is_waiting(e) and e.model in ("", *models)]
        chosen = sorted(waiting, key=lambda entry: entry.created)[:max_count]
        for entry in chosen:
            entry.owned, entry.adoption = True, entry.adoption + 1
        return [entry.record(now) for entry in chosen]

    async def disown(self, adoptions: Mapping[str, int], not_run: bool = False) -> None:
        """Remove the owner of requests with these adoption numbers."""
        for request_id, adoption in adoptions.items():
            entry = self._entries.get(request_id)
            if entry is not None and entry.owned and entry.adoption == adoption:
                entry.owned = False
                entry.unowned_since = entry.unowned_since if not_run else self._clock()

    async def cancel(self, request_id: str, caller: Caller | None) -> None:
        """End an unowned request; mark an owned request as cancelled."""
        entry = self._entries.get(request_id)
        foreign = entry is not None and caller is not None and entry.request.caller != caller.name
        if entry is None or foreign or entry.ending is not None:
            raise NotFoundError(f"request_id = {request_id!r}: not running")
        self._cancel_entry(entry)

    async def leave(self, request_id: str) -> bool:
        """Cancel a request without clients; return whether a session must end it."""
        entry = self._entries.get(request_id)
        if entry is None or entry.ending is not None:
            return False
        return self._cancel_entry(entry)

    async def owned(self) -> dict[str, int]:
        """Return the adoption numbers of owned unfinished requests, by id."""
        return {n: entry.adoption for n, entry in self._entries.items() if entry.owned and not entry.ending}

    async def listen(self, request_id: str) -> None:
        """Do nothing, as there are no other gateways."""

    async def abandon(self, patience_s: float, reason: str) -> int:
        """End unowned requests after deadline or patience; remove old finished requests."""
        now, ended = self._clock(), 0
        for name, entry in list(self._entries.items()):
            deadline = entry.request.deadline_s
            if entry.ending is not None:
                if entry.ended < now - self._retention_s:
                    del self._entries[name]
            elif self._is_waiting(entry) and deadline is not None and entry.created + deadline < now:
                ended += self._end(entry, Ending(FinishReason.DEADLINE))
            elif self._is_waiting(entry) and entry.unowned_since < now - patience_s:
                ended += self._end(entry, Ending(FinishReason.ERROR, reason))
        if self._journal is not None:
            self._journal.shorten()
        return ended

    async def discard(self, request_id: str, adoption: int = 1) -> None:
        """Remove a request that this gateway cannot run, unless it was adopted again."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.owned and entry.adoption == adoption:
            self._write([gone_line(request_id)])
            del self._entries[request_id]
            self._open[entry.request.caller].discard(request_id)

    def check(self) -> None:
        """Check that a write would succeed now, if the latest write failed."""
        if self._journal is not None:
            self._journal.check()

    async def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        """Return a request's record; None if it is missing or another caller's."""
        entry = self._entries.get(request_id)
        if entry is None or (caller is not None and entry.request.caller != caller.name):
            return None
        return entry.record(self._clock())

    async def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        """Return the new tokens and endings of requests, after known positions."""
        glimpses: dict[str, Glimpse | FaultError | None] = {}
        for request_id, known in positions.items():
            start = known.tokens
            if (entry := self._entries.get(request_id)) is None:
                glimpses[request_id] = None
            else:
                glimpses[request_id] = Glimpse(entry.tokens[start:], entry.logprobs[start:], entry.ending)
        return glimpses

    def take_cancelled(self) -> list[str]:
        """Return owned requests that a client has cancelled."""
        return [n for n, e in self._entries.items() if e.cancelled and e.owned and e.ending is None]

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _may(self, request_id: str, idempotency_key: str, caller: Caller) -> bool:
        """Return whether the request is new, if the caller may create it."""
        known = self._entries.get(request_id)
        if known is not None and known.key != idempotency_key:
            raise AlreadyExistsError(f"request_id = {request_id!r}: used for another request")
        if known is not None:
            return False
        if caller.max_concurrent and len(self._open.get(caller.name, ())) >= caller.max_concurrent:
            raise ExhaustedError(
                f"key {caller.name}: {caller.max_concurrent} requests are unfinished, the maximum of this key"
            )
        max_tokens = caller.tokens_per_minute
        if max_tokens and self._rate(caller.name) >= max_tokens:
            raise ExhaustedError(
                f"key {caller.name}: over {max_tokens} tokens per minute, the maximum",
                retry_after_s=10.0,
            )
        return True

    def _rate(self, caller: str) -> int:
        """Return the tokens generated for a caller within the last minute."""
        counts = self._rates.get(caller, deque())
        while counts and counts[0][0] < self._clock() - _MINUTE_S:
            counts.popleft()
        return sum(count for _, count in counts)

    def _write(self, lines: Sequence[Line]) -> None:
        if self._journal is not None:
            self._journal.write(lines)

    def _change(self, item: Progress, names: Sequence[str], model: str) -> Change:
        """Return the change for a progress item, without applying it."""
        entry = self._entries.get(item.request_id)
        if entry is not None and (not entry.owned or entry.adoption != item.state.adoption):
            return Change(item.request_id, None, Written.FENCED)
        if entry is None or len(entry.tokens) < item.start:
            return Change(item.request_id, None, Written.LOST)
        change = Change(item.request_id, entry, Written.CANCEL if entry.cancelled else Written.OK)
        if new := item.tokens[len(entry.tokens) - item.start :]:
            begun = (entry.model, entry.drawn_for) if entry.tokens else (model, item.state.drawn_for)
            asked = item.state.request.logprobs
            rows = item.logprobs[len(entry.logprobs) - item.start :] if asked else []
            change.delivery = Delivery(new, rows, *begun)
        if item.final and item.state.finish is not None:
            change.ending, change.ended = Ending.of(item.state, names), self._clock()
        return change

    def _apply(self, change: Change) -> Written:
        entry = change.entry
        if entry is None:
            return change.written
        if change.delivery is not None:
            change.delivery.add_to(entry)
            if caller := entry.request.caller:
                count = len(change.delivery.tokens)
                self._rates.setdefault(caller, deque()).append((self._clock(), count))
                self._rate(caller)  # removes old counts, even without a quota
        if change.ending is not None:
            self._note_end(entry, change.ending, change.ended)
        return change.written

    def _cancel_entry(self, entry: StoredRequest) -> bool:
        """End an unowned request; return whether a session must end it instead."""
        if entry.owned:
            entry.cancelled = True
            return True
        self._end(entry, Ending(FinishReason.CANCELLED))
        return False

    def _end(self, entry: StoredRequest, ending: Ending) -> bool:
        now = self._clock()
        self._write([end_line(entry, len(entry.tokens), ending, now)])
        self._note_end(entry, ending, now)
        return True

    def _note_end(self, entry: StoredRequest, ending: Ending, now: float) -> None:
        entry.ending, entry.ended = ending, now
        self._open.get(entry.request.caller, set()).discard(entry.request.request_id)

    @staticmethod
    def _is_waiting(entry: StoredRequest) -> bool:
        return entry.ending is None and not entry.owned


def _new_ids() -> Callable[[Progress], bool]:
    """Return a function that is true for the first item of each request."""
    seen = set[str]()

    def is_new(item: Progress) -> bool:
        known = item.request_id in seen
        seen.add(item.request_id)
        return not known

    return is_new
