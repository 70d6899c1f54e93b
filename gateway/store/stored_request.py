"""Define an embedded store's requests, and the changes in its file.

A change (`Line`) is a request, a delivery of tokens, an `Ending` or a removal. A record of the file has one change, or
a list of changes written together.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.store.records import Record, decode_content, encode_content
from gateway.store.requests import Written
from specinfer.errors import InvalidInputError
from specinfer.request.statuses import LogprobRow
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.request import GenerationRequest

Line: TypeAlias = Mapping[str, Any]
_BEGINNINGS = (b'{"id": ', b'[{"id": ')
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidInputError)


@dataclass(slots=True)
class StoredRequest:
    """A request of the embedded store."""

    request: GenerationRequest
    key: str
    created: float
    """Time of arrival, by the wall clock in seconds."""
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
        """Return the request's record; `now` is the wall clock in seconds."""
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

    def created_line(self) -> Line:
        line = {"id": self.request.request_id, "key": self.key, "created": self.created}
        return {**line, "content": encode_content(self.request)}

    def all_lines(self) -> list[Line]:
        lines = [self.created_line()]
        if self.tokens:
            lines.append(Delivery(self.tokens, self.logprobs, self.model, self.drawn_for).line(self, 0))
        if self.ending is not None:
            lines.append(end_line(self, len(self.tokens), self.ending, self.ended))
        return lines


@dataclass(frozen=True, slots=True)
class Delivery:
    """New tokens of a request."""

    tokens: Sequence[int]
    logprobs: Sequence[LogprobRow]
    model: str
    drawn_for: bool | None

    def line(self, entry: StoredRequest, start: int) -> Line:
        """Return the change that adds these tokens after the first `start` tokens."""
        rows = [[row.chosen, row.top] for row in self.logprobs]
        line = {"id": entry.request.request_id, "start": start, "tokens": list(self.tokens), "logprobs": rows}
        return {**line, "model": self.model, "drawn": self.drawn_for}

    def add_to(self, entry: StoredRequest) -> None:
        entry.tokens += self.tokens
        entry.logprobs += self.logprobs
        entry.model, entry.drawn_for = self.model, self.drawn_for


def end_line(entry: StoredRequest, tokens: int, ending: Ending, at: float) -> Line:
    """Return the change that ends a request after `tokens` tokens."""
    return {"id": entry.request.request_id, "tokens_before": tokens, "end": ending.to_json(), "at": at}


def gone_line(request_id: str) -> Line:
    return {"id": request_id, "gone": True}


def to_record(lines: Sequence[Line]) -> bytes:
    """Return the record of changes that are written together."""
    return json.dumps(lines[0] if len(lines) == 1 else lines).encode()


@dataclass(slots=True)
class Change:
    """A request's new tokens and `Ending`, to be written and applied."""

    request_id: str
    entry: StoredRequest | None
    written: Written
    delivery: Delivery | None = None
    ending: Ending | None = None
    ended: float = 0.0

    @property
    def lines(self) -> list[Line]:
        if self.entry is None:
            return []
        before = len(self.entry.tokens)
        lines = [self.delivery.line(self.entry, before)] if self.delivery is not None else []
        if self.ending is not None:
            after = before + (len(self.delivery.tokens) if self.delivery is not None else 0)
            lines.append(end_line(self.entry, after, self.ending, self.ended))
        return lines


class RecordReader:
    """Applies records to requests.

    An unreadable change, and later changes of its request, are ignored.
    """

    def __init__(self, entries: dict[str, StoredRequest], now: float) -> None:
        self._entries, self._now = entries, now
        self._understood = 0
        self.left_out = 0
        """Number of ignored changes."""

    def read(self, records: Iterable[bytes], torn: bytes) -> None:
        """Read all records of a file; `torn` is an incomplete last record."""
        for record in records:
            if record.strip():
                self._read_record(record)
        ours = any(torn.startswith(start) or start.startswith(torn) for start in _BEGINNINGS)
        if not self._understood and (self.left_out or not ours):
            raise ValueError("must be a store's file, but none of its lines is readable")

    def _read_record(self, record: bytes) -> None:
        try:
            content = json.loads(record)
        except _UNREADABLE:
            self.left_out += 1
            return
        for line in content if isinstance(content, list) else [content]:
            try:
                whole = self._read_line(line)
            except _UNREADABLE:
                whole = False
            self._understood += whole
            self.left_out += not whole

    def _read_line(self, line: Line) -> bool:
        """Apply a change; return False if it does not continue its request."""
        name = line["id"]
        if "content" in line:
            request = decode_content(name, line["content"])
            self._entries[name] = StoredRequest(
                *(request, line["key"], float(line["created"]), False), unowned_since=self._now
            )
            return True
        if "gone" in line:
            self._entries.pop(name, None)
            return True
        entry = self._entries[name]
        if "end" in line:
            ending, at = Ending.from_json(line["end"]), float(line["at"])
            if not self._continues(line.get("tokens_before"), entry):
                return False
            entry.ending, entry.ended = ending, at
            return True
        rows = [_row(chosen, top) for chosen, top in line["logprobs"]]
        delivery = Delivery([int(token) for token in line["tokens"]], rows, line["model"], line["drawn"])
        if not self._continues(line.get("start"), entry):
            return False
        delivery.add_to(entry)
        return True

    def _continues(self, place: int | None, entry: StoredRequest) -> bool:
        """Return whether a change at token `place` continues a request's tokens.

        Changes of older versions have no place.
        """
        return place == len(entry.tokens) if place is not None else not self.left_out


def _row(chosen: float, top: Iterable[Sequence[Any]]) -> LogprobRow:
    return LogprobRow(chosen, tuple((token, value) for token, value in top))
