"""Log lines about drafts that fail, a few of many."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence

from specinfer.drafters.entries import DraftOutcome
from specinfer.errors import SpecInferError
from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)


class DraftFailures:
    """Failures of a service's speculators."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._count: Counter[int] = Counter()
        self._paces: dict[int, LogPace] = defaultdict(LogPace)

    def note(self, outcomes: Sequence[DraftOutcome], now: float) -> None:
        """Log the latest failure of each speculator, the first one at once, the others at intervals."""
        latest: dict[int, SpecInferError] = {}
        for outcome in outcomes:
            for speculator, found in outcome.drafts:
                if isinstance(found, SpecInferError):
                    self._count[speculator] += 1
                    latest[speculator] = found
        for speculator, error in latest.items():
            if self._paces[speculator].due(now):
                log.warning(
                    "speculator %s failed to draft (%d so far): %s",
                    *(self._names[speculator], self._count[speculator], error.for_logs),
                )
