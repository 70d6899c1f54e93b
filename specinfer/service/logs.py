"""Write log lines to standard error, without content of requests.

    text   2026-11-20 10:15:02,123 INFO    gateway gateway.app: gateway 5f0c
    json   {"time": "2026-11-20T10:15:02.123Z", "level": "INFO", "service": "gateway",
            "logger": "gateway.app", "message": "gateway 5f0c"}   (on one line)

JSON lines have `request_id` if they are about one request, `trace_id` if it is traced, and `exception`.

Exceptions of libraries may quote requests, so by default only their type and traceback are written.
SpecInfer's own errors have a message without such values, `for_logs`.
"""

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TypeAlias

from specinfer.errors import SpecInferError
from specinfer.system.log_lines import REQUEST_ID, TRACE_ID

log = logging.getLogger(__name__)

ExceptionInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class DiscreetFormatter(logging.Formatter):
    """Writes exceptions without their messages, which may quote requests."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with type and traceback of its exception."""
        record.exc_text = None  # another handler may have stored the full text
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Keep only the first line of asyncio's messages.

        The other lines show tasks with their exceptions.
        """
        if record.name == "asyncio":
            record.message = record.message.partition("\n")[0]
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:
        """Return traceback and type of each exception, first cause first."""
        return "\n\n".join(map(_describe, _causes(ei[1], set()))) if ei[1] is not None else ""


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line; formatter `inner` formats the messages."""

    def __init__(self, service: str, inner: logging.Formatter) -> None:
        super().__init__()
        self._service, self._inner = service, inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; empty fields are left out."""
        record.message = record.getMessage()
        line = {
            "time": _utc(record.created),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": self._inner.formatMessage(record),
            "request_id": getattr(record, "request_id", "") or REQUEST_ID.get(),
            "trace_id": getattr(record, "trace_id", "") or TRACE_ID.get(),
            "exception": self._inner.formatException(record.exc_info) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in line.items() if value}, ensure_ascii=False)


def make_formatter(service: str, log_format: str = "text", quote_requests: bool = False) -> logging.Formatter:
    """Return a service's log formatter; the parameters are those of `set_up_logs`."""
    kind = logging.Formatter if quote_requests else DiscreetFormatter
    if log_format == "json":
        return JsonFormatter(service, kind("%(message)s"))
    return kind(f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s")


def set_up_logs(service: str, level: str, quote_requests: bool = False, log_format: str = "text") -> None:
    """Configure the root logger of a service process.

    Args:
        service: the service's name in the lines.
        level: minimum level.
        quote_requests: whether to write exceptions' messages, which may quote requests.
        log_format: "text" or "json".
    """
    handler = logging.StreamHandler()
    handler.setFormatter(make_formatter(service, log_format, quote_requests))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    _take_foreign_lines()


class _WithoutHandlers(logging.Logger):
    """Logger for libraries; ignores the handlers that they add."""

    def addHandler(self, hdlr: logging.Handler) -> None:
        """Ignore the handler; the root logger's handler writes the lines."""

    @property
    def propagate(self) -> bool:
        """Always True."""
        return True

    @propagate.setter
    def propagate(self, value: bool) -> None:
        """Ignore the library's value."""


def _take_foreign_lines() -> None:
    """Log Python's warnings, uncaught exceptions and libraries' lines in our format."""
    logging.captureWarnings(True)
    sys.excepthook = _log_fault
    threading.excepthook = lambda fault: _log_fault(fault.exc_type, fault.exc_value, fault.exc_traceback)
    usual = logging.getLoggerClass()
    logging.setLoggerClass(_WithoutHandlers)
    try:
        for library in ("transformers", "huggingface_hub"):
            logging.getLogger(library)
    finally:
        logging.setLoggerClass(usual)


def _log_fault(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        log.critical("uncaught exception", exc_info=(kind, error, trace))


def _utc(seconds: float) -> str:
    """Return a Unix time as ISO 8601 in UTC, to the millisecond."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{thousandths:03d}Z"


def _causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """Yield an exception's causes (or a group's members) in order, then itself."""
    if id(error) in seen:
        return
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in (before, *inner):
        if cause is not None:
            yield from _causes(cause, seen)
    yield error


def _describe(error: BaseException) -> str:
    places = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(error, SpecInferError):
        return f"Traceback (most recent call last):\n{places}{name}: {error.for_logs}"
    return f"Traceback (most recent call last):\n{places}{name} (--log-requests shows its message)"
