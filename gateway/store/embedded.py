"""Store a single gateway's requests in this process, with SQLite: in memory or in a file.

Without Redis there are no other gateways. Each call is one transaction, which survives a crash of the process; a crash
of the machine may lose the last ones. Requests of an earlier process have no owner, and the gateway adopts them.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.database import open_database
from gateway.store.keys import TOKEN_WIDTH
from gateway.store.protocol import GatewayReport, Renewal, Store, VerifierLease, Written, is_new
from gateway.store.records import (
    Glimpse,
    Known,
    Record,
    encode_content,
    encode_progress,
    logprobs_width,
    read_glimpse,
    read_record,
)
from specinfer.errors import FaultError, NotFoundError, UnavailableError
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.threads import EngineThread

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_OWNED = "ending IS NULL AND owner = :me"
_ADOPTED = "id = :id AND owner = :me AND adoption = :adoption"
_UNOWNED = "ending IS NULL AND owner IS NOT :me"
_ROW = """SELECT id, idempotency_key, caller, owner, adoption, cancelled, ending, coalesce((SELECT
start + length(tokens) FROM delivery WHERE id = :id ORDER BY start DESC LIMIT 1), 0) AS length
FROM request WHERE id = :id"""


def _transaction(
    call: "Callable[Concatenate[EmbeddedStore, P], T]",
) -> "Callable[Concatenate[EmbeddedStore, P], Coroutine[Any, Any, T]]":
    """Make a method a transaction, in the store's thread if the store has a file."""

    @wraps(call)
    async def run(store: "EmbeddedStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(call, store, *args, **kwargs)
        return await store.thread.call(store.transact, work) if store.path else store.transact(work)

    return run


class EmbeddedStore(Store):
    """Store of the only gateway, whose claims always succeed."""

    name = "the store"

    def __init__(
        self,
        gateway_id: str,
        retention_s: int,
        max_unowned: int = 1024,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
        thread: EngineThread | None = None,
    ) -> None:
        """Create a store; with `path`, in that file.

        Finished requests stay for `retention_s` seconds; at most `max_unowned` requests may wait for an owner.
        """
        self.gateway_id, self.path = gateway_id, path
        self._retention_s, self._max_unowned, self._clock = retention_s, max_unowned, clock
        self.thread = thread or EngineThread("store")
        self.database = open_database(path)
        self._opened = clock()
        self._failed = False
        """True if a write has failed since the latest renewal."""
        self._fence = 0

    def transact(self, work: Callable[[], T]) -> T:
        """Run `work` as one transaction; after an error, nothing is changed."""
        try:
            with self.database:
                answer = work()
        except sqlite3.Error as error:
            self._failed = True
            raise UnavailableError(f"the store's file {self.path} cannot be written: {error}") from error
        return answer

    @_transaction
    def create(self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool) -> bool:
        word = self._refusal(request.request_id, idempotency_key, caller)
        if not word and not owned and self._count(_UNOWNED) >= self._max_unowned:
            word = "full"
        if not word:
            word, owner = "created", self.gateway_id if owned else None
            names = {"id": request.request_id, "key": idempotency_key, "caller": caller.name, "owner": owner}
            self._sql(
                "INSERT INTO request (id, idempotency_key, caller, owner, created, unowned_since, deadline, content)"
                " VALUES (:id, :key, :caller, :owner, :now, :now, :now + :deadline, :content)",
                **{**names, "deadline": request.deadline_s, "content": encode_content(request)},
            )
        return is_new(word, request.request_id, caller, self._max_unowned)

    @_transaction
    def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        is_new(self._refusal(request_id, idempotency_key, caller), request_id, caller, self._max_unowned)

    async def append(self, progress: Sequence[Progress], names: Sequence[str], model: str) -> list[Written]:
        return await self._write([encode_progress(item, names) for item in progress], model)

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, now: float
    ) -> Written:
        """Return OK: this store loses no requests."""
        return Written.OK

    @_transaction
    def adopt(self, max_count: int, models: Sequence[str]) -> list[Record]:
        turns = "row_number() OVER (PARTITION BY caller ORDER BY created, rowid), created, rowid"
        begun = "model IN (SELECT value FROM json_each(:models))"
        select = f"SELECT id FROM request WHERE {_UNOWNED} AND {begun} ORDER BY {turns} LIMIT :most"
        rows = self._sql(select, models=json.dumps(["", *models]), most=max_count).fetchall()
        since = "unowned_since = max(unowned_since, :opened)"
        for row in rows:
            change = f"UPDATE request SET owner = :me, adoption = adoption + 1, {since} WHERE id = :id"
            self._sql(change, id=row["id"])
        return [record for row in rows if (record := self._load_or_end(row["id"])) is not None]

    @_transaction
    def disown(self, adoptions: Mapping[str, int], not_run: bool = False) -> None:
        since = "unowned_since" if not_run else ":now"
        change = (
            f"UPDATE request SET owner = NULL, unowned_since = {since} WHERE {_ADOPTED} AND ending IS NULL"
        )
        for request_id, adoption in adoptions.items():
            self._sql(change, id=request_id, adoption=adoption)

    @_transaction
    def cancel(self, request_id: str, caller: Caller | None) -> None:
        row = self._row(request_id)
        if row is None or row["ending"] is not None or (caller is not None and row["caller"] != caller.name):
            raise NotFoundError(f"request_id = {request_id!r}: not running")
        self._cancel(request_id)

    @_transaction
    def leave(self, request_id: str) -> bool:
        return self._cancel(request_id)

    @_transaction
    def owned(self) -> dict[str, int]:
        rows = self._sql(f"SELECT id, adoption FROM request WHERE {_OWNED}")
        return {row["id"]: row["adoption"] for row in rows}

    async def listen(self, request_id: str) -> None:
        """Do nothing, as there are no other gateways."""

    @_transaction
    def abandon(self, patience_s: float, reason: str) -> int:
        """End unowned requests after deadline or patience; remove old data."""
        self._sql("DELETE FROM request WHERE ended < :now - :retention", retention=self._retention_s)
        self._sql("DELETE FROM rate WHERE minute < :now / 60 - 2")
        late = self._end(f"{_UNOWNED} AND deadline < :now", Ending(FinishReason.DEADLINE).to_json())
        unowned = f"{_UNOWNED} AND max(unowned_since, :opened) < :now - :patience"
        return late + self._end(unowned, Ending(FinishReason.ERROR, reason).to_json(), patience=patience_s)

    @_transaction
    def discard(self, request_id: str, adoption: int = 1) -> None:
        self._sql(f"DELETE FROM request WHERE {_ADOPTED}", id=request_id, adoption=adoption)

    @_transaction
    def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        return self._load(request_id, caller)

    @_transaction
    def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        glimpses: dict[str, Glimpse | FaultError | None] = {}
        for name, (start, top) in positions.items():
            row, (tokens, logprobs) = self._row(name), self._texts(name)
            new = tokens[start * TOKEN_WIDTH :], logprobs[start * logprobs_width(top) :]
            glimpses[name] = read_glimpse(name, (name, row["ending"]), *new, top) if row else None
        return glimpses

    @_transaction
    def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        """Return requests to cancel; if a write has failed, check that one would succeed now."""
        if self._failed:
            self.database.execute("PRAGMA user_version = 1")
            self._failed = False
        rows = self._sql(f"SELECT id FROM request WHERE {_OWNED} AND cancelled")
        return Renewal("embedded", [report], [row["id"] for row in rows], [])

    async def claim(self, instance_id: str) -> VerifierLease | str:
        self._fence += 1
        return VerifierLease(instance_id, self._fence)

    async def release(self, lease: VerifierLease) -> None:
        """Do nothing, as there are no other gateways."""

    async def resign(self, leases: Sequence[VerifierLease]) -> None:
        """Do nothing: a later process adopts the requests."""

    async def close(self) -> None:
        self.thread.stop()
        self.database.close()

    def _sql(self, statement: str, **values: object) -> sqlite3.Cursor:
        always = {"me": self.gateway_id, "now": self._clock(), "opened": self._opened}
        return self.database.execute(statement, {**always, **values})

    def _count(self, where: str, **values: object) -> int:
        (count,) = self._sql(f"SELECT count(*) FROM request WHERE {where}", **values).fetchone()
        return int(count)

    def _refusal(self, request_id: str, idempotency_key: str, caller: Caller) -> str:
        """Return the word for `is_new` that refuses a request; "" without a reason."""
        if (row := self._row(request_id)) is not None:
            return "same" if row["idempotency_key"] == idempotency_key else "other"
        most = caller.max_concurrent
        if most and self._count("ending IS NULL AND caller = :caller", caller=caller.name) >= most:
            return "concurrent"
        minute, passed = divmod(self._clock() / 60, 1)
        # the last 60 seconds: all of this minute, and the proportional part of the previous one
        tokens = "total(CASE minute WHEN :minute THEN tokens ELSE tokens * :rest END)"
        select = f"SELECT {tokens} FROM rate WHERE caller = :caller AND minute >= :minute - 1"
        (used,) = self._sql(select, caller=caller.name, minute=int(minute), rest=1 - passed).fetchone()
        return "rate" if 0 < caller.tokens_per_minute <= used else ""

    @_transaction
    def _write(self, items: Sequence[Sequence[Any]], model: str) -> list[Written]:
        return [self._write_one(item, model) for item in items]

    def _write_one(self, item: Sequence[Any], model: str) -> Written:
        """Write one item of `append.lua`."""
        name, adoption, place, tokens, _, logprobs, count, drawn, ending = item
        row = self._row(name)
        if row is not None and (row["owner"], row["adoption"]) != (self.gateway_id, adoption):
            return Written.FENCED
        if row is None or row["length"] < place:
            return Written.LOST
        stored = (row["length"] - place) // TOKEN_WIDTH
        if (new := count - stored) > 0:
            texts = tokens[stored * TOKEN_WIDTH :], logprobs[stored * (len(logprobs) // count) :]
            add = "INSERT INTO delivery VALUES (:id, :start, :tokens, :logprobs)"
            self._sql(add, id=name, start=row["length"], tokens=texts[0], logprobs=texts[1])
            if not row["length"]:
                begin = "UPDATE request SET model = :model, drawn = :drawn WHERE id = :id"
                self._sql(begin, id=name, model=model, drawn=drawn)
            if row["caller"]:
                count_up = "ON CONFLICT (caller, minute) DO UPDATE SET tokens = tokens + :new"
                insert = f"INSERT INTO rate VALUES (:caller, CAST(:now / 60 AS INT), :new) {count_up}"
                self._sql(insert, caller=row["caller"], new=new)
        if ending:
            self._end("id = :id", ending, id=name)
        return Written.CANCEL if row["cancelled"] else Written.OK

    def _cancel(self, request_id: str) -> bool:
        """End an unowned request; return whether a session must end it instead."""
        mark = f"UPDATE request SET cancelled = 1 WHERE id = :id AND {_OWNED}"
        owned = self._sql(mark, id=request_id).rowcount > 0
        self._end(f"id = :id AND {_UNOWNED}", Ending(FinishReason.CANCELLED).to_json(), id=request_id)
        return owned

    def _end(self, where: str, ending: str, **values: object) -> int:
        """End requests; return their number."""
        change = f"UPDATE request SET ending = :ending, ended = :now WHERE {where}"
        return self._sql(change, ending=ending, **values).rowcount

    def _row(self, request_id: str) -> sqlite3.Row | None:
        """Return a request's short fields and its number of tokens."""
        row: sqlite3.Row | None = self._sql(_ROW, id=request_id).fetchone()
        return row

    def _texts(self, request_id: str) -> tuple[str, str]:
        """Return a request's tokens and log-probabilities, as Redis has them."""
        select = "SELECT tokens, logprobs FROM delivery WHERE id = :id ORDER BY start"
        rows = self._sql(select, id=request_id).fetchall()
        return "".join([row["tokens"] for row in rows]), "".join([row["logprobs"] for row in rows])

    def _load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        row = self._sql('SELECT *, ending AS "end" FROM request WHERE id = :id', id=request_id).fetchone()
        if row is None or (caller is not None and row["caller"] != caller.name):
            return None
        return read_record(request_id, dict(row), *self._texts(request_id), self._clock())

    def _load_or_end(self, request_id: str) -> Record | None:
        """Load a request; if it cannot be decoded, end it and return None."""
        try:
            return self._load(request_id)
        except FaultError as error:
            log.error("%s", error.for_logs, exc_info=error, extra={"request_id": request_id})
            damaged = Ending(FinishReason.ERROR, "the request's stored record is damaged", retryable=False)
            self._end("id = :id", damaged.to_json(), id=request_id)
            return None
