"""How long the speculators get in a step: in proportion to what the verifier takes. Pure.

A draft that takes several times the rest of the step is not worth its wait, whatever the planner hopes of it;
and where a pass takes a second, half a second is not late. The planner decides whom to ask; the deadline only
ends waits that nobody planned.
"""

from collections import deque
from statistics import median

TIMES = 4.0
"""Of the usual rest of a step. A good tree brings some four tokens: for more than four steps' time plain
decoding brings as many."""
LEAST_S = 0.1
"""Shared machines pause for tens of milliseconds. A service that is late is not waited for again before it
has answered, so a hung one costs this once."""
_REMEMBERED = 31


def draft_deadline(step_s: float | None, most_s: float) -> float:
    """Seconds that speculators get.

    Args:
        step_s: what a step usually takes without drafting; None while that is not known.
        most_s: the operator's maximum.
    """
    if step_s is None:
        return most_s
    return min(max(TIMES * step_s, LEAST_S), most_s)


class StepTimes:
    """What steps usually take without drafting: the median of the latest, so that a pause or a long prompt
    does not count."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_REMEMBERED)
        self._drafted_at: float | None = None

    @property
    def usual_s(self) -> float | None:
        """None before the first step."""
        return median(self._latest) if self._latest else None

    def begins(self, now: float) -> None:
        """A step begins to draft: the one before is over."""
        if self._drafted_at is not None:
            self._latest.append(now - self._drafted_at)

    def drafted(self, now: float) -> None:
        """Drafting is over; verifying and committing follow."""
        self._drafted_at = now
