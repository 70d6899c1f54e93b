"""Report the collapse or recovery of a speculator's acceptance."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.observability.metrics.speculation import SpeculationMetrics
from gateway.session.totals import Named
from specinfer.scheduling.statistics import SpeculationCounts

log = logging.getLogger(__name__)
WINDOW = 1000
"""Verified drafts per window (an average over consecutive drafts)."""
MIN_SHARE = 0.1
"""Acceptance below this share of `usual` has collapsed."""
_NEWEST = 0.05
"""Weight of the latest window in the moving average `usual`."""


@dataclass(slots=True)
class AcceptanceTrend:
    usual: float | None = None
    """Moving average of accepted tokens per draft, without collapsed windows."""
    latest: float = 0.0
    """Accepted tokens per draft in the latest window."""
    collapsed: bool = False
    _drafts: int = 0
    _accepted: int = 0
    _barren: int = 0
    """Drafts since the latest accepted token."""

    def note(self, drafts: int, accepted: int) -> bool:
        """Add `drafts` verified drafts, `accepted` tokens; return whether `collapsed` changed."""
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
        self.collapsed = rate == 0 or (self.usual is not None and rate < MIN_SHARE * self.usual)
        if not self.collapsed:
            self.usual = rate if self.usual is None else self.usual + _NEWEST * (rate - self.usual)


class AcceptanceWatch:
    """Watches acceptance over all sessions of a gateway."""

    def __init__(self, metrics: SpeculationMetrics) -> None:
        self._metrics = metrics
        self._trends: dict[Named, AcceptanceTrend] = defaultdict(AcceptanceTrend)

    def count(self, counts: SpeculationCounts, names: Sequence[Named]) -> None:
        """Count a step; `names[i]` is the name of speculator i."""
        for number, did in counts.speculators.items():
            named = names[number]
            trend = self._trends[named]
            if did.drafts and trend.note(did.drafts, did.accepted):
                self._metrics.scores.collapse(named, trend.collapsed)
                self._say(named, trend)

    def _say(self, named: Named, trend: AcceptanceTrend) -> None:
        usual = "unknown" if trend.usual is None else f"{trend.usual:.3f}"
        what = "collapsed" if trend.collapsed else "has recovered"
        log.warning(
            "acceptance of speculator %s at %s %s: %.3f tokens per draft in the last %d drafts, usual: %s",
            *(named.speculator, named.service, what, trend.latest, WINDOW, usual),
        )
