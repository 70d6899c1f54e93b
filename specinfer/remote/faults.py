"""Faults of speculators: counts of outcomes, and quarantines. Pure."""

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from specinfer.errors import MalformedTreeError
from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)


IN_A_ROW = 8
"""Consecutive malformed trees that cause a quarantine.

A working speculator sends none, so a few separate a fault from an accident; one bad tree, of an unusual
request, should not cost all other trees.
"""
FIRST_S = 1.0
LONGEST_S = 300.0


@dataclass(slots=True)
class Quarantine:
    """One speculator's record of malformed trees.

    It returns on probation: one malformed tree leaves it out again, for twice as long; so many sound ones in
    a row as it takes malformed ones clear the record.
    """

    until: float = float("-inf")
    """Time when the latest one ends."""
    seconds: float = FIRST_S
    """Seconds that the next one lasts."""
    _malformed: int = 0
    _sound: int = 0

    def holds(self, now: float) -> bool:
        """Return whether it is left out."""
        return now < self.until

    def malformed(self, now: float) -> float:
        """Count a malformed tree; return the new quarantine's seconds, or 0."""
        self._malformed += 1
        self._sound = 0
        if self._malformed < IN_A_ROW or self.holds(now):
            return 0.0
        begun, self.seconds = self.seconds, min(2 * self.seconds, LONGEST_S)
        self.until = now + begun
        return begun

    def sound(self) -> None:
        """Count a sound tree."""
        self._malformed = 0
        self._sound += 1
        if self._sound >= IN_A_ROW:
            self.seconds = FIRST_S


MAX_REASON = 200
"""Characters of a service's message that are logged."""


@dataclass(slots=True)
class DraftFaults:
    """Faults of an address' speculators, by their numbers in the pool."""

    address: str
    drafts: Counter[int] = field(default_factory=Counter)
    """Drafts that were refused, failed or malformed, by speculator."""
    malformed: int = 0
    """Number of malformed ones among these."""
    quarantines: Counter[int] = field(default_factory=Counter)
    """Times that each speculator was left out for its malformed trees."""
    _paces: dict[int, LogPace] = field(default_factory=lambda: defaultdict(LogPace))
    _quarantines: dict[int, Quarantine] = field(default_factory=lambda: defaultdict(Quarantine))

    def left_out(self, speculator: int, now: float) -> bool:
        """Return whether a speculator is not to be called."""
        return self._quarantines[speculator].holds(now)

    def note(self, speculator: int, name: str, reason: str, now: float) -> None:
        """Count a draft that failed."""
        self.drafts[speculator] += 1
        if self._paces[speculator].due(now):
            said = "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON])  # others write it
            log.warning(
                "a draft of speculator %s at %s failed (%d so far): %s",
                *(name, self.address, self.drafts[speculator], said),
            )

    def note_malformed(self, speculator: int, name: str, error: MalformedTreeError, now: float) -> bool:
        """Count a malformed tree; return whether its speculator is quarantined now.

        It is after too many consecutive ones.
        """
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
        self._quarantines[speculator].sound()


Outcome: TypeAlias = Literal["ok", "late", "failed", "malformed", "stale"]


@dataclass(slots=True)
class DraftStatistics:
    """One service's figures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    resyncs: int = 0
    """Requests with another context in the service's cache."""
    quarantines: Counter[int] = field(default_factory=Counter)
    """Times that a speculator was left out, by its number."""

    def count(self, outcome: Outcome, drafts: int = 1) -> None:
        if drafts:
            self.outcomes[outcome] += drafts

    def take(self) -> "DraftStatistics":
        """Return the figures since the last call, and begin new ones."""
        counts = DraftStatistics(self.outcomes, self.resyncs, self.quarantines)
        self.outcomes, self.resyncs, self.quarantines = Counter(), 0, Counter()
        return counts

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.resyncs or self.quarantines)
