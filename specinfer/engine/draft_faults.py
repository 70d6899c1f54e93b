"""Count outcomes of drafts; quarantine speculators that send malformed trees. Pure."""

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from specinfer.errors import SpecInferError
from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)


IN_A_ROW = 8
"""Consecutive malformed trees that cause a quarantine.

A working speculator sends no malformed trees. A single malformed tree, from an unusual request, must not stop the
speculator's other drafts.
"""
FIRST_S = 1.0
LONGEST_S = 300.0


@dataclass(slots=True)
class Quarantine:
    """One speculator's quarantines for malformed trees.

    After a quarantine, one malformed tree starts another of twice the length, until `IN_A_ROW` valid trees in
    a row reset the length.
    """

    until: float = float("-inf")
    """End of the latest quarantine, by the caller's clock in seconds."""
    seconds: float = FIRST_S
    """Length of the next quarantine, in seconds."""
    _malformed: int = 0
    _sound: int = 0

    def holds(self, now: float) -> bool:
        """Return whether the speculator is quarantined."""
        return now < self.until

    def malformed(self, now: float) -> float:
        """Count a malformed tree; return a new quarantine's seconds, or 0."""
        self._malformed += 1
        self._sound = 0
        if self._malformed < IN_A_ROW or self.holds(now):
            return 0.0
        begun, self.seconds = self.seconds, min(2 * self.seconds, LONGEST_S)
        self.until = now + begun
        return begun

    def sound(self) -> None:
        self._malformed = 0
        self._sound += 1
        if self._sound >= IN_A_ROW:
            self.seconds = FIRST_S


MAX_REASON = 200
"""Maximum logged characters of a service's message."""


@dataclass(slots=True)
class DraftFaults:
    """Counts and logs faults of the speculators at one address."""

    address: str
    drafts: Counter[int] = field(default_factory=Counter)
    """Drafts that were refused, failed or malformed, by speculator."""
    malformed: int = 0
    """Number of malformed drafts."""
    _paces: dict[int, LogPace] = field(default_factory=lambda: defaultdict(LogPace))
    _quarantines: dict[int, Quarantine] = field(default_factory=lambda: defaultdict(Quarantine))

    def left_out(self, speculator: int, now: float) -> bool:
        return self._quarantines[speculator].holds(now)

    def note(self, speculator: int, name: str, reason: str, now: float) -> None:
        self.drafts[speculator] += 1
        if self._paces[speculator].due(now):
            said = "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON])  # untrusted text
            log.warning(
                "a draft of speculator %s at %s failed (%d so far): %s",
                *(name, self.address, self.drafts[speculator], said),
            )

    def note_malformed(self, speculator: int, name: str, error: SpecInferError, now: float) -> bool:
        """Count a malformed tree; return whether it starts a quarantine."""
        self.malformed += 1
        self.note(speculator, name, f"malformed tree: {error.for_logs}", now)
        seconds = self._quarantines[speculator].malformed(now)
        if not seconds:
            return False
        log.warning(
            "speculator %s at %s is quarantined for %.0f s: its trees are malformed repeatedly",
            *(name, self.address, seconds),
        )
        return True

    def note_sound(self, speculator: int) -> None:
        self._quarantines[speculator].sound()


Outcome: TypeAlias = Literal["ok", "late", "failed", "malformed", "stale"]


@dataclass(slots=True)
class DraftStatistics:
    """One service's counts of drafts by outcome."""

    outcomes: Counter[str] = field(default_factory=Counter)
    resyncs: int = 0
    """Number of RESYNC answers."""
    quarantines: Counter[int] = field(default_factory=Counter)
    """Number of quarantines by speculator."""

    def count(self, outcome: Outcome, drafts: int = 1) -> None:
        if drafts:
            self.outcomes[outcome] += drafts

    def take(self) -> "DraftStatistics":
        """Return the counts since the last call; reset the counts."""
        counts = DraftStatistics(self.outcomes, self.resyncs, self.quarantines)
        self.outcomes, self.resyncs, self.quarantines = Counter(), 0, Counter()
        return counts

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.resyncs or self.quarantines)
