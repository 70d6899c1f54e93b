"""What goes wrong with the drafts of one service: counted and logged, and who is left out for it.

A speculator's first fault is logged, then the latest one at times (`LogPace`). Times come in as arguments.
"""

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gateway.services.quarantine import Quarantine
from specinfer.errors import MalformedTreeError
from specinfer.log_pace import LogPace

log = logging.getLogger(__name__)

MAX_REASON = 200
"""Characters of a service's message that are logged."""


@dataclass(slots=True)
class DraftFaults:
    """Of the speculators at one address; they are numbered as in the pool."""

    address: str
    drafts: Counter[int] = field(default_factory=Counter)
    """Drafts that were refused, failed or malformed, by speculator."""
    malformed: int = 0
    """Of these, the malformed ones."""
    quarantines: Counter[int] = field(default_factory=Counter)
    """How often each speculator was left out for its malformed trees."""
    _paces: dict[int, LogPace] = field(default_factory=lambda: defaultdict(LogPace))
    _quarantines: dict[int, Quarantine] = field(default_factory=lambda: defaultdict(Quarantine))

    def left_out(self, speculator: int, now: float) -> bool:
        """Whether a speculator is not to be asked."""
        return self._quarantines[speculator].holds(now)

    def note(self, speculator: int, name: str, why: str, now: float) -> None:
        """Counts a draft that failed."""
        self.drafts[speculator] += 1
        if self._paces[speculator].due(now):
            said = "".join(c if c.isprintable() else " " for c in why[:MAX_REASON])  # others write it
            log.warning(
                "a draft of speculator %s at %s failed (%d so far): %s",
                *(name, self.address, self.drafts[speculator], said),
            )

    def note_malformed(self, speculator: int, name: str, error: MalformedTreeError, now: float) -> bool:
        """Counts a malformed tree; whether it is one too many in a row, so that its speculator is left out
        for a while."""
        self.malformed += 1
        self.note(speculator, name, f"malformed tree: {error.for_logs}", now)
        seconds = self._quarantines[speculator].malformed(now)
        if not seconds:
            return False
        self.quarantines[speculator] += 1
        log.warning(
            "speculator %s at %s is left out for %.0f s: its trees are malformed again and again",
            *(name, self.address, seconds),
        )
        return True

    def note_sound(self, speculator: int) -> None:
        """A tree was sound."""
        self._quarantines[speculator].sound()
