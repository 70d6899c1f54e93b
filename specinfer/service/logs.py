"""Log lines: time, level, service, message; to standard error. Without what requests say.

Exceptions of other people's code may quote what they worked on, so by default only their type and the places
that they came through are written. Our own errors say what was wrong, in `for_logs`, without the value.
"""

import logging
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TypeAlias

from specinfer.errors import SpecInferError

ExceptionInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class DiscreetFormatter(logging.Formatter):
    """Writes exceptions without what they quote."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and where an exception belongs to it what may be said of that."""
        record.exc_text = None  # another handler may have written it out
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Of asyncio's messages the first line: the others show tasks, with what their exceptions say."""
        if record.name == "asyncio":
            record.message = record.message.partition("\n")[0]
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:
        """Places and types, from the first cause on."""
        return "\n\n".join(map(_describe, _causes(ei[1], set()))) if ei[1] is not None else ""


def set_up_logs(service: str, level: str, quote_requests: bool = False) -> None:
    """Configures the root logger of a service process.

    Args:
        quote_requests: whether exceptions are written as they are, with what they may quote of requests.
    """
    kind = logging.Formatter if quote_requests else DiscreetFormatter
    handler = logging.StreamHandler()
    handler.setFormatter(kind(f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """What led to an exception, first to last, and the exception; of a group also those in it."""
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
    return f"Traceback (most recent call last):\n{places}{name} (--log-requests shows what it says)"
