"""Log the progress of slow work, as `packing weights: 40 %`.

Services write these lines to their logs; the command line shows them while it waits.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

LOGGER = "specinfer.progress"
log = logging.getLogger(LOGGER)
_PERCENT = "%s: %d %%"
_EVERY_S = 1.0
"""Minimum seconds between two progress lines of one work."""
_LONG_S = 1.0
"""Work of at least this many seconds logs its duration."""


class LatestWork(logging.Handler):
    """Remembers the latest work that `progress` logged."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.percent, self.ended = "starting", 0, False

    def emit(self, record: logging.LogRecord) -> None:
        """Read a line of `progress`."""
        if isinstance(record.args, tuple) and record.args:
            self.name = str(record.args[0])
            self.percent = int(str(record.args[1])) if record.msg == _PERCENT else 0

    def end(self) -> None:
        """Note that all work is done."""
        self.ended = True


@contextmanager
def latest_work() -> Iterator[LatestWork]:
    """Watch the progress of all work within the block."""
    work = LatestWork()
    log.addHandler(work)
    try:
        yield work
    finally:
        log.removeHandler(work)


class Report(Protocol):
    """Callback for the amounts of finished and total work, in any unit."""

    def __call__(self, done: int, total: int) -> None:
        """Log the percentage, at most every `_EVERY_S` seconds."""


@contextmanager
def progress(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Log the start of work, its progress, and a duration over `_LONG_S`."""
    started = last = clock()
    log.info("%s", what)

    def report(done: int, total: int) -> None:
        nonlocal last
        if total > 0 and clock() - last >= _EVERY_S:
            last = clock()
            log.info(_PERCENT, what, 100 * done // total)

    yield report
    if (seconds := clock() - started) >= _LONG_S:
        log.info("%s: %.1f s", what, seconds)
