"""Requests and leases of a gateway that is alone, kept in its process; with a file, through its restarts.

`EmbeddedStore` is a `RequestStore`, `EmbeddedLeases` a `LeaseStore`, without Redis: nobody else has leases, and nobody
takes over. What is written goes to the file before it is visible (it survives the process, not the machine): a line of
JSON for each request, each delivery and each end. A store that opens the file again has unfinished requests without an
owner, which the gateway adopts as it would adopt those of another one.
"""

import fcntl
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.leases import GatewayReport, LeaseStore, Renewal, VerifierLease
from gateway.store.records import Glimpse, Known, Record, decode_content, encode_content
from gateway.store.requests import RequestStore, Written
from specinfer.errors import (
    AlreadyExistsError,
    ExhaustedError,
    FaultError,
    InvalidInputError,
    NotFoundError,
    SettingError,
)
from specinfer.outcomes import FinishReason, LogprobRow
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress, unite
from specinfer.scheduling.request import GenerationRequest, RequestState

log = logging.getLogger(__name__)
_MINUTE_S = 60.0
_SMALL = 1 << 20
"""Bytes of a file below which it is not worth writing anew."""


@dataclass(slots=True)
class _Entry:
    """A request, and all that is known of it."""

    request: GenerationRequest
    key: str
    created: float
    """Time of its arrival, by the wall clock."""
    owned: bool
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobRow] = field(default_factory=list)
    model: str = ""
    drawn_for: bool | None = None
    adoption: int = 1
    unowned_since: float = 0.0
    ending: Ending | None = None
    ended: float = 0.0
    cancelled: bool = False

    def record(self, now: float) -> Record:
        return Record(
            self.request,
            self.key,
            list(self.tokens),
            list(self.logprobs),
            now - self.created,
            self.model,
            self.drawn_for,
            self.adoption,
            self.ending,
        )


class EmbeddedStore(RequestStore):
    """The requests of the only gateway."""

    def __init__(
        self,
        gateway_id: str,
        retention_s: int,
        max_unowned: int = 1024,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a store; with `path` it goes on with what is in that file, and writes to it.

        Raises:
            SettingError: if the file cannot be read or written, is none of ours, or is in use by another store.
        """
        self.gateway_id = gateway_id
        self._retention_s, self._max_unowned, self._clock = retention_s, max_unowned, clock
        self._entries: dict[str, _Entry] = {}
        self._open: dict[str, set[str]] = {}
        """Unfinished requests by caller."""
        self._rates: dict[str, deque[tuple[float, int]]] = {}
        """Tokens generated for callers within the last minute."""
        now = clock()
        self._journal = _Journal(path, self._entries, now, now - retention_s) if path is not None else None
        for name, entry in self._entries.items():
            if entry.ending is None:
                self._open.setdefault(entry.request.caller, set()).add(name)

    async def create(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool
    ) -> bool:
        """Record a request; see `RequestStore.create`."""
        if not self._may(request.request_id, idempotency_key, caller):
            return False
        unowned = sum(self._is_waiting(entry) for entry in self._entries.values())
        if not owned and unowned >= self._max_unowned:
            raise ExhaustedError(f"queue full: {self._max_unowned} requests wait for a gateway")
        now = self._clock()
        entry = _Entry(request, idempotency_key, now, owned, unowned_since=now)
        self._entries[request.request_id] = entry
        self._open.setdefault(caller.name, set()).add(request.request_id)
        if self._journal is not None:
            self._journal.created(entry)
        return True

    async def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        """Check that `create` would not refuse a caller now."""
        self._may(request_id, idempotency_key, caller)

    async def append(
        self, progress: Sequence[Progress], names: Sequence[str], adoptions: Mapping[str, int], model: str
    ) -> dict[str, Written]:
        """Make new tokens and ends durable; see `RequestStore.append`."""
        found = {
            item.request_id: self._append(item, names, adoptions.get(item.request_id, 0), model)
            for item in unite(progress)
        }
        if self._journal is not None:
            self._journal.flush()
        return found

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, adoption: int, now: float
    ) -> Written:
        """Return OK: nothing is lost while the process lives."""
        return Written.OK

    async def adopt(self, most: int, models: Sequence[str]) -> list[Record]:
        """Adopt up to so many requests that have no owner, the oldest first."""
        now = self._clock()
        waiting = [e for e in self._entries.values() if self._is_waiting(e) and e.model in ("", *models)]
        chosen = sorted(waiting, key=lambda entry: entry.created)[:most]
        for entry in chosen:
            entry.owned, entry.adoption = True, entry.adoption + 1
        return [entry.record(now) for entry in chosen]

    async def disown(self, request_ids: Sequence[str], in_vain: bool = False) -> None:
        """Give up these requests."""
        for name in request_ids:
            entry = self._entries.get(name)
            if entry is not None and entry.owned:
                entry.owned = False
                entry.unowned_since = entry.unowned_since if in_vain else self._clock()

    async def cancel(self, request_id: str, caller: Caller | None) -> None:
        """End a request that has no owner, or have its session end it."""
        entry = self._entries.get(request_id)
        foreign = entry is not None and caller is not None and entry.request.caller != caller.name
        if entry is None or foreign or entry.ending is not None:
            raise NotFoundError(f"request_id = {request_id!r}: not running")
        self._cancel_entry(entry)

    async def leave(self, request_id: str) -> bool:
        """Return whether the request is to end, as nobody reads it any more."""
        entry = self._entries.get(request_id)
        if entry is None or entry.ending is not None:
            return False
        return self._cancel_entry(entry)

    async def owned(self) -> list[str]:
        """Return the unfinished requests of this gateway."""
        return [name for name, entry in self._entries.items() if entry.owned and entry.ending is None]

    async def listen(self, request_id: str) -> None:
        """Return: there is no other gateway that could want to know."""

    async def abandon(self, patience_s: float, why: str) -> int:
        """End requests that have had no owner for so long, or whose deadline is over; forget old ones."""
        now, ended = self._clock(), 0
        for name, entry in list(self._entries.items()):
            deadline = entry.request.deadline_s
            if entry.ending is not None:
                if entry.ended < now - self._retention_s:
                    del self._entries[name]
            elif self._is_waiting(entry) and deadline is not None and entry.created + deadline < now:
                ended += self._end(entry, Ending(FinishReason.DEADLINE))
            elif self._is_waiting(entry) and entry.unowned_since < now - patience_s:
                ended += self._end(entry, Ending(FinishReason.ERROR, why))
        if self._journal is not None:
            self._journal.shorten()
        return ended

    async def discard(self, request_id: str) -> None:
        """Forget a request that was refused after `create`."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._open[entry.request.caller].discard(request_id)
            if self._journal is not None:
                self._journal.discarded(request_id)

    async def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        """Return a request with all that is known of it."""
        entry = self._entries.get(request_id)
        if entry is None or (caller is not None and entry.request.caller != caller.name):
            return None
        return entry.record(self._clock())

    async def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        """Return the news of requests of which so much is known."""
        found: dict[str, Glimpse | FaultError | None] = {}
        for name, known in positions.items():
            start = known.tokens
            if (entry := self._entries.get(name)) is None:
                found[name] = None
            else:
                found[name] = Glimpse(entry.tokens[start:], entry.logprobs[start:], entry.ending)
        return found

    def take_cancelled(self) -> list[str]:
        """Return owned requests that somebody wants cancelled."""
        return [n for n, e in self._entries.items() if e.cancelled and e.owned and e.ending is None]

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()

    def _may(self, request_id: str, idempotency_key: str, caller: Caller) -> bool:
        """Return whether the request is new.

        Raises:
            AlreadyExistsError: if its id was used for something else.
            ExhaustedError: if the caller's quota is used up.
        """
        known = self._entries.get(request_id)
        if known is not None and known.key != idempotency_key:
            raise AlreadyExistsError(f"request_id = {request_id!r}: used for another request")
        if known is not None:
            return False
        if caller.max_concurrent and len(self._open.get(caller.name, ())) >= caller.max_concurrent:
            raise ExhaustedError(f"key {caller.name}: {caller.max_concurrent} requests are unfinished")
        most = caller.tokens_per_minute
        if most and self._rate(caller.name) >= most:
            raise ExhaustedError(f"key {caller.name}: over {most} tokens per minute", retry_after_s=10.0)
        return True

    def _rate(self, caller: str) -> int:
        """Return the tokens generated for a caller within the last minute."""
        counts = self._rates.get(caller, deque())
        while counts and counts[0][0] < self._clock() - _MINUTE_S:
            counts.popleft()
        return sum(count for _, count in counts)

    def _append(self, item: Progress, names: Sequence[str], adoption: int, model: str) -> Written:
        entry = self._entries.get(item.request_id)
        if entry is None or len(entry.tokens) < item.start:
            return Written.LOST
        if not entry.owned or entry.adoption != adoption:
            return Written.FENCED
        new = item.tokens[len(entry.tokens) - item.start :]
        if new and not entry.tokens:
            entry.model, entry.drawn_for = model, item.state.drawn_for
        entry.tokens += new
        if item.state.request.logprobs:
            entry.logprobs += item.logprobs[len(entry.logprobs) - item.start :]
        caller = item.state.request.caller
        if caller and new:
            self._rates.setdefault(caller, deque()).append((self._clock(), len(new)))
            self._rate(caller)  # forgets older ones, also of callers without a quota
        if self._journal is not None and new:
            self._journal.appended(entry, len(new))
        if item.final and item.state.finish is not None:
            self._end(entry, Ending.of(item.state, names))
        return Written.CANCEL if entry.cancelled else Written.OK

    def _cancel_entry(self, entry: _Entry) -> bool:
        """Return whether its session is to end it; end one that has none."""
        if entry.owned:
            entry.cancelled = True
            return True
        self._end(entry, Ending(FinishReason.CANCELLED))
        return False

    def _end(self, entry: _Entry, ending: Ending) -> bool:
        entry.ending, entry.ended = ending, self._clock()
        self._open.get(entry.request.caller, set()).discard(entry.request.request_id)
        if self._journal is not None:
            self._journal.ended(entry)
        return True

    @staticmethod
    def _is_waiting(entry: _Entry) -> bool:
        return entry.ending is None and not entry.owned


class EmbeddedLeases(LeaseStore):
    """The leases of the only gateway: it has whatever it claims."""

    def __init__(self, store: EmbeddedStore, lease_s: float) -> None:
        self.gateway_id, self.lease_s = store.gateway_id, lease_s
        self._store, self._fence = store, 0

    async def renew(self, report: GatewayReport, held: Sequence[VerifierLease]) -> Renewal:
        """Return that all is well, and the requests to cancel."""
        return Renewal("embedded", [report], self._store.take_cancelled(), [])

    async def claim(self, instance_id: str) -> VerifierLease | str:
        """Return the lease of a verifier."""
        self._fence += 1
        return VerifierLease(instance_id, self._fence)

    async def give_up(self, lease: VerifierLease) -> None:
        """Return: nobody else wants it."""

    async def leave(self, held: Sequence[VerifierLease]) -> None:
        """Return: there is nobody to leave anything to."""


class _Journal:
    """The file of a store: lines of JSON, written anew when it is opened, and when it has doubled since.

    PATH.lock is locked while it is open: a second process would put a file of its own in the place of this one.
    """

    def __init__(self, path: Path, entries: dict[str, _Entry], now: float, oldest: float) -> None:
        """Read what is there into `entries`, but what ended before `oldest`.

        Raises:
            SettingError: if it cannot be read or written, has a line that is none of ours, or is in use.
        """
        self._path, self._entries = path, entries
        self._file: TextIO | None = None
        self._size = 0
        """Bytes of the file when it was written anew."""
        with ExitStack() as closing:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = closing.enter_context(path.with_name(f"{path.name}.lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read_all(now, oldest)
                self._write_anew()
            except BlockingIOError as error:
                raise SettingError("store", str(path), "is in use by another process") from error
            except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidInputError) as error:
                raise SettingError("store", str(path), f"cannot be used: {error}") from error
            self._locked = closing.pop_all()

    def shorten(self) -> None:
        """Write the file anew, without what was forgotten, if it has grown much."""
        size = self._path.stat().st_size
        if size < max(_SMALL, 2 * self._size):
            return
        try:
            self._write_anew()
        except OSError as error:
            self._size = size  # not again before it has doubled
            log.warning("store = %s: not shortened: %s", self._path, error)

    def created(self, entry: _Entry) -> None:
        """Write a new request."""
        request = entry.request
        line = {"id": request.request_id, "key": entry.key, "created": entry.created}
        self._write({**line, "content": encode_content(request)})
        self.flush()

    def appended(self, entry: _Entry, count: int) -> None:
        """Write its newest tokens."""
        rows = [[row.chosen, row.top] for row in entry.logprobs[-count:]] if entry.logprobs else []
        line = {"id": entry.request.request_id, "tokens": entry.tokens[-count:], "logprobs": rows}
        self._write({**line, "model": entry.model, "drawn": entry.drawn_for})

    def ended(self, entry: _Entry) -> None:
        """Write its end."""
        assert entry.ending is not None
        self._write({"id": entry.request.request_id, "end": entry.ending.to_json(), "at": entry.ended})
        self.flush()

    def discarded(self, request_id: str) -> None:
        """Write that it is forgotten."""
        self._write({"id": request_id, "gone": True})

    def flush(self) -> None:
        """Hand over to the system what was written."""
        assert self._file is not None
        self._file.flush()

    def close(self) -> None:
        """Close the file, for others to open."""
        assert self._file is not None
        self._file.close()
        self._locked.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line) + "\n")

    def _read_all(self, now: float, oldest: float) -> None:
        lines = self._path.read_text(encoding="utf-8").split("\n") if self._path.exists() else []
        for number, line in enumerate(lines, 1):
            if line and not (number == len(lines) and _torn(line)):
                self._read(json.loads(line), self._entries, now)
        for name, entry in list(self._entries.items()):
            if entry.ending is not None and entry.ended < oldest:
                del self._entries[name]

    def _write_anew(self) -> None:
        """Put a file of what is known in the place of the file; the file stays if that fails."""
        before, fresh = self._file, self._path.with_name(f"{self._path.name}.new")
        written = self._file = fresh.open("w", encoding="utf-8")
        try:
            for entry in self._entries.values():
                self._rewrite(entry)
            self.flush()
            fresh.replace(self._path)
        except BaseException:
            self._file = before
            with suppress(OSError):
                written.close()
            raise
        if before is not None:
            before.close()
        self._size = self._path.stat().st_size

    def _rewrite(self, entry: _Entry) -> None:
        self.created(entry)
        if entry.tokens:
            self.appended(entry, len(entry.tokens))
        if entry.ending is not None:
            self.ended(entry)

    @staticmethod
    def _read(line: Mapping[str, Any], entries: dict[str, _Entry], now: float) -> None:
        name = line["id"]
        if "content" in line:
            request = decode_content(name, line["content"])
            entries[name] = _Entry(request, line["key"], line["created"], False, unowned_since=now)
        elif "gone" in line:
            entries.pop(name, None)
        elif "end" in line:
            entries[name].ending, entries[name].ended = Ending.from_json(line["end"]), line["at"]
        else:
            entry = entries[name]
            entry.tokens += line["tokens"]
            entry.logprobs += [_row(chosen, top) for chosen, top in line["logprobs"]]
            entry.model, entry.drawn_for = line["model"], line["drawn"]


def _row(chosen: float, top: Iterable[Sequence[Any]]) -> LogprobRow:
    return LogprobRow(chosen, tuple((token, value) for token, value in top))


def _torn(line: str) -> bool:
    """Return whether a last line was not written to its end."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
