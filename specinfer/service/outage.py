"""Log repeated failures, and compute the pause before a retry.

The first failure is logged, then at most one every five seconds.
"""

import logging
from dataclasses import dataclass

from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)


def backoff(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause in seconds: `first_s`, doubled per failure, up to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures, 64))


@dataclass(slots=True)
class Outage:
    """Tracks since when a service does not answer, and logs it."""

    name: str = "the verifier"
    since: float | None = None
    """Time of the first failure in seconds; None while the service answers."""
    _pace: LogPace | None = None

    def failed(self, error: Exception, now: float) -> float:
        """Record a failure; return the seconds since the first."""
        if self.since is None or self._pace is None:
            self.since, self._pace = now, LogPace()
        away = now - self.since
        if self._pace.due(now):
            log.warning("%s does not answer (for %.0f s): %s", self.name, away, error)
        return away

    def over(self, now: float) -> None:
        """Record that the service has answered."""
        if self.since is not None:
            log.warning("%s answers again after %.1f s", self.name, now - self.since)
            self.since = None
