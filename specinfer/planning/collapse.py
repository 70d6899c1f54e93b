"""Whether a speculator's drafts are accepted no more, by what it did before. Pure.

Answers stay the same where acceptance collapses, they only become slower: nobody notices unless somebody
looks.
"""

from dataclasses import dataclass

WINDOW = 1000
"""Drafts that are judged together."""
LEAST = 0.1
"""Of what a speculator's drafts usually bring."""
_NEWEST = 0.05
"""Weight of a window in what is usual."""


@dataclass(slots=True)
class AcceptanceTrend:
    """Of one speculator."""

    usual: float | None = None
    """Accepted tokens per draft in the windows in which nothing was wrong."""
    latest: float = 0.0
    """The same of the newest drafts that were judged."""
    collapsed: bool = False
    _drafts: int = 0
    _accepted: int = 0
    _barren: int = 0
    """Drafts since one was accepted."""

    def note(self, drafts: int, accepted: int) -> bool:
        """Notes what verified drafts brought; says whether the judgement has changed."""
        self._drafts += drafts
        self._accepted += accepted
        self._barren = 0 if accepted else self._barren + drafts
        before = self.collapsed
        if self._barren >= WINDOW:
            self._judge(0.0)
        elif self._drafts >= WINDOW:
            self._judge(self._accepted / self._drafts)
        return self.collapsed != before

    def _judge(self, rate: float) -> None:
        self._drafts = self._accepted = 0
        self.latest = rate
        self.collapsed = rate == 0 or (self.usual is not None and rate < LEAST * self.usual)
        if not self.collapsed:
            self.usual = rate if self.usual is None else self.usual + _NEWEST * (rate - self.usual)
