"""Writes finished steps to a file, from which `specinfer train scheduler` learns."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gateway.api.conversation import TextMatches
from specinfer.errors import SettingError
from specinfer.planning.feedback import FinishedStep, contexts_of
from specinfer.planning.recorded_steps import line_of

log = logging.getLogger(__name__)


class StepRecorder:
    """One gateway's; without a file it does nothing."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._tokens: dict[str, Sequence[int]] = {}
        self._matches = TextMatches(lambda name: self._tokens[name])

    @classmethod
    def open(cls, path: Path | None) -> "StepRecorder":
        """A recorder that appends to this file; None: steps are not recorded.

        Raises:
            SettingError: if it cannot be written.
        """
        try:
            return cls(path.open("a", encoding="utf-8") if path is not None else None)
        except OSError as error:
            raise SettingError("record_steps", str(path), f"cannot be written: {error.strerror}") from error

    def write(self, step: FinishedStep, names: Sequence[str]) -> None:
        """Records a step; what cannot be written ends the recording, not the serving. `names` are those of
        the speculators, by number."""
        if self._file is None:
            return
        self._tokens = {entry.request_id: entry.state.tokens for entry in step.entries}
        contexts = contexts_of(step)
        line = line_of(step, names, dict(zip(contexts, self._matches(contexts), strict=True)))
        if line is None:
            return
        try:
            self._file.write(f"{line}\n")
        except OSError as error:
            log.error("steps are not recorded any more: %s", error)
            self._file = None

    def close(self) -> None:
        """Writes what is still in memory."""
        if self._file is not None:
            self._file.close()


NO_RECORDER = StepRecorder()
