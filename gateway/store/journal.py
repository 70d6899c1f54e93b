"""The file of an embedded store: lines of JSON, one for each request, each delivery and each end."""

import fcntl
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from gateway.store.records import Record, decode_content, encode_content
from specinfer.errors import InvalidInputError, SettingError
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.request import GenerationRequest
from specinfer.statuses import LogprobRow

log = logging.getLogger(__name__)
_SMALL = 1 << 20
"""Bytes of a file below which it is not worth writing anew."""


@dataclass(slots=True)
class StoredRequest:
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
        """Return it as the gateway takes it; `now` is the time by the wall clock."""
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


class Journal:
    """The file of a store: lines of JSON, written anew when it is opened, and when it has doubled since.

    PATH.lock is locked while it is open: a second process would put a file of its own in the place of this one.
    """

    def __init__(self, path: Path, entries: dict[str, StoredRequest], now: float, oldest: float) -> None:
        """Read what is there into `entries`, but what ended before `oldest`.

        Raises:
            SettingError: if it cannot be read or written, has a line that is none of ours, or is in use.
        """
        path = path.resolve()  # the lock is beside the file, not beside a link to it
        self._path, self._entries = path, entries
        self._file: TextIO | None = None
        self._size = 0
        """Bytes of the file when it was written anew."""
        with ExitStack() as closing:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and not path.is_file():  # a file would be put in the place of a device
                    raise OSError("it is no file")
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

    def created(self, entry: StoredRequest) -> None:
        """Write a new request."""
        request = entry.request
        line = {"id": request.request_id, "key": entry.key, "created": entry.created}
        self._write({**line, "content": encode_content(request)})
        self.flush()

    def appended(self, entry: StoredRequest, count: int) -> None:
        """Write its newest tokens."""
        rows = [[row.chosen, row.top] for row in entry.logprobs[-count:]] if entry.logprobs else []
        line = {"id": entry.request.request_id, "tokens": entry.tokens[-count:], "logprobs": rows}
        self._write({**line, "model": entry.model, "drawn": entry.drawn_for})

    def ended(self, entry: StoredRequest) -> None:
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

    def _rewrite(self, entry: StoredRequest) -> None:
        self.created(entry)
        if entry.tokens:
            self.appended(entry, len(entry.tokens))
        if entry.ending is not None:
            self.ended(entry)

    @staticmethod
    def _read(line: Mapping[str, Any], entries: dict[str, StoredRequest], now: float) -> None:
        name = line["id"]
        if "content" in line:
            request = decode_content(name, line["content"])
            entries[name] = StoredRequest(request, line["key"], line["created"], False, unowned_since=now)
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
