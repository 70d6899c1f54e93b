"""Collect exceptions that the code under test logs instead of raising: they are findings, too."""

import logging
import warnings
from types import TracebackType
from typing import Self


class CaughtFaults(logging.Handler):
    """Handler that stores logged exceptions; while it is open, warnings are errors.

    It formats every line, as formatting may fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self._faults: list[BaseException] = []
        self._warnings = warnings.catch_warnings()

    def emit(self, record: logging.LogRecord) -> None:
        """Implement `logging.Handler.emit`."""
        record.getMessage().encode()
        if record.exc_info and record.exc_info[1] is not None:
            self._faults.append(record.exc_info[1])

    def raise_first(self) -> None:
        """Raise the first exception logged since the last call, if any."""
        faults, self._faults = self._faults, []
        if faults:
            raise faults[0]

    def forget(self) -> None:
        """Drop all logged exceptions."""
        self._faults.clear()

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._before, self._level_before = list(root.handlers), root.level
        root.handlers, root.level = [self], logging.INFO
        self._warnings.__enter__()
        warnings.simplefilter("error")
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        root = logging.getLogger()
        root.handlers, root.level = self._before, self._level_before
        self._warnings.__exit__(*error)
