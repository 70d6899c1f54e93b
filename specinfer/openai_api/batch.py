"""Answer files in OpenAI's batch format by any OpenAI-compatible server.

An input line is a JSON object with `custom_id`, `method` (POST), `url` (a path under `/v1`) and `body`. An output line,
in the order in which answers come, has `id`, `custom_id` and `response` (`status_code`, `request_id`, `body`), or
`error` if the server did not answer. A refusal is an answer. Requests are retried while the server is full.
"""

import fcntl
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.openai_api.batch_input import BatchJob, read_object
from specinfer.openai_api.server import ApiServer, Reply
from specinfer.system.append_file import AppendFile, private
from specinfer.text.prompts import read_bytes, to_text

log = logging.getLogger(__name__)
_BUSY = (429, 503)
"""HTTP statuses of a full server; the request is retried."""
_DONE = range(200, 300)
_REFUSALS = (400, 404, 413, 422)
"""HTTP statuses of refusals; they count as answers, unlike other errors."""
_LONGEST_PAUSE_S = 60.0
_WRITE_AGAIN_S = 1.0
"""Seconds between two attempts to write an answer."""
_BEGINNING = b'{"id": "batch_req_'
"""Prefix of every output line."""
Answered: TypeAlias = tuple[dict[str, Any], int | None]
"""An output line, and its HTTP status; None without an answer."""


@dataclass(slots=True)
class BatchTotals:
    """Counts of answered lines."""

    succeeded: int = 0
    refused: int = 0
    failed: int = 0

    def count(self, status: int | None) -> None:
        """Count a line by its status; None: the server did not answer."""
        if not _is_final(status):
            self.failed += 1
        elif status in _DONE:
            self.succeeded += 1
        else:
            self.refused += 1


@contextmanager
def sole_run(output: Path) -> Iterator[None]:
    """Lock OUTPUT.lock, so that no other run writes the same output."""
    path = output.resolve()
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise InvalidInputError("output", str(output), "must be a regular file")
    lock = path.with_name(f"{path.name}.lock")
    with ExitStack() as closing:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = closing.enter_context(open(lock, "w", opener=private))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "another run writes it now: wait for its end, or choose another file"
            raise InvalidInputError("output", str(output), reason) from error
        except OSError as error:
            reason = f"its lock file {lock.name}: {error.strerror or 'cannot be locked'}"
            raise InvalidInputError("output", str(output), reason) from error
        closing.callback(lock.unlink, missing_ok=True)
        yield


def keep_answered(path: Path, jobs: Sequence[BatchJob]) -> set[str]:
    """Return the ids with answers in the output; remove its other lines."""
    if not path.exists():
        return set()
    known, kept = {job.custom_id for job in jobs}, dict[str, str]()
    for number, text in enumerate(_whole_lines(path), 1):
        if not text.strip() or _is_torn(text.encode()):
            continue
        row = read_object(f"{path}:{number}", text)
        identity = row.get("custom_id")
        if not isinstance(identity, str) or identity not in known:
            raise InvalidInputError(
                f"{path}:{number}: custom_id",
                identity,
                "must be a custom_id of the input; use another output",
            )
        response = row.get("response")
        if isinstance(response, dict) and _is_final(response.get("status_code")):
            kept[identity] = text
    try:
        with closing(AppendFile(path.resolve())) as file:
            file.replace(text.encode() for text in kept.values())
    except OSError as error:
        raise InvalidInputError(
            "output", str(path), f"cannot be written: {error.strerror or error}"
        ) from error
    return set(kept)


def _whole_lines(path: Path) -> list[str]:
    """Return the complete lines of an output, without a partial last line."""
    data = read_bytes("output", path)
    *_, last = data.split(b"\n")
    if _is_torn(last):
        data = data.removesuffix(last)
    return to_text("output", path, data).split("\n")


def _is_torn(line: bytes) -> bool:
    """Return whether a line is an incomplete output line."""
    if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _is_final(status: object) -> bool:
    return status in _DONE or status in _REFUSALS


def answer_all(
    server: ApiServer,
    jobs: Sequence[BatchJob],
    output: Path,
    concurrency: int,
    patience_s: float,
    done: Callable[[BatchTotals], None] = lambda _: None,
) -> BatchTotals:
    """Send all requests; append the answers to the output as they come.

    Args:
        server: the server that answers.
        jobs: requests, sent in this order.
        output: file that gets a line per request.
        concurrency: maximum requests that run at once.
        patience_s: seconds for which requests are retried while the server is full, and writes while the
            disk is full.
        done: called after each line.
    """
    totals = BatchTotals()
    workers = ThreadPoolExecutor(concurrency)
    ending = threading.Event()
    running = {workers.submit(_answer, server, job, patience_s, ending) for job in jobs}
    unwritten = list[Answered]()
    with closing(AppendFile(output.resolve())) as file:

        def write() -> None:
            while unwritten:
                row, status = unwritten[0]
                _append(file, output, _to_line(row), patience_s, ending)
                del unwritten[0]
                totals.count(status)
                done(totals)

        try:
            for future in as_completed(list(running)):
                running.discard(future)
                unwritten.append(future.result())
                write()
        finally:  # after an interruption running requests end, without retries, and no further one starts
            ending.set()
            workers.shutdown(wait=True, cancel_futures=True)
            unwritten += [future.result() for future in running if not future.cancelled()]
            write()
    return totals


def _append(file: AppendFile, output: Path, line: bytes, patience_s: float, ending: threading.Event) -> None:
    """Append a line, with retries unless the batch is ending."""
    until = time.monotonic() + patience_s
    first = True
    while True:
        try:
            file.append(line)
            return
        except OSError as error:
            if ending.is_set() or time.monotonic() + _WRITE_AGAIN_S > until:
                reason = f"cannot be written: {error.strerror or error}; run the batch again to continue"
                raise UnavailableError(f"output = {str(output)!r}: {reason}") from error
            if first:
                log.warning(
                    "output = %s: cannot be written, trying again: %s", output, error.strerror or error
                )
            first = False
        ending.wait(_WRITE_AGAIN_S)


def _to_line(row: Mapping[str, Any]) -> bytes:
    """Encode a line in UTF-8; lone surrogates stay escaped."""
    text = json.dumps(row, ensure_ascii=False)
    whole = not any("\ud800" <= character <= "\udfff" for character in text)
    return (text if whole else json.dumps(row)).encode()


def _answer(server: ApiServer, job: BatchJob, patience_s: float, ending: threading.Event) -> Answered:
    """Return a request's output line, and its HTTP status or None."""
    row: dict[str, Any] = {
        "id": f"batch_req_{job.line}",
        "custom_id": job.custom_id,
        "response": None,
        "error": None,
    }
    try:
        reply = _reply(server, job, patience_s, ending)
    except UnavailableError as error:
        return {**row, "error": {"code": "unavailable", "message": str(error)}}, None
    if reply.status in _DONE and not isinstance(reply.content, dict):
        words = f"{server.base_url}/{job.path}: not a JSON object: {str(reply.content)[:200]}"
        return {**row, "error": {"code": "no_answer", "message": words}}, None
    response = {
        "status_code": reply.status,
        "request_id": reply.headers.get("x-request-id", ""),
        "body": reply.content,
    }
    return {**row, "response": response}, reply.status


def _reply(server: ApiServer, job: BatchJob, patience_s: float, ending: threading.Event) -> Reply:
    """Return the server's answer; retry while the server is full."""
    until = time.monotonic() + patience_s
    while True:
        reply = server.call(job.path, job.body)
        pause_s = _pause_s(reply.headers.get("retry-after", ""))
        if reply.status not in _BUSY or time.monotonic() + pause_s > until:
            return reply
        if ending.wait(pause_s):
            return reply


def _pause_s(retry_after: str) -> float:
    return min(float(retry_after), _LONGEST_PAUSE_S) if retry_after.isdecimal() else 1.0
