"""Repeated failures: log lines, and the pause before a retry.

The first failure is logged, and then a line every five seconds.
"""

import logging
from dataclasses import dataclass

from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)


def backoff(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause after failures, doubled for each, up to a limit."""
    return min(longest_s, first_s * 2.0 ** min(failures, 64))


@dataclass(slots=True)
class Outage:
    """The time in which a service does not answer."""

    name: str = "the verifier"
    since: float | None = None
    """Time of the first failure; None while it answers."""
    _pace: LogPace | None = None

    def failed(self, error: Exception, now: float) -> float:
        """Record a failure; return the seconds of the outage."""
        if self.since is None or self._pace is None:
            self.since, self._pace = now, LogPace()
        away = now - self.since
        if self._pace.due(now):
            log.warning("%s does not answer (for %.0f s): %s", self.name, away, error)
        return away

    def over(self, now: float) -> None:
        """Note that it answered."""
        if self.since is not None:
            log.warning("%s answers again after %.1f s", self.name, now - self.since)
            self.since = None
