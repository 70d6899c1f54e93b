"""Says when a speculator's drafts are accepted no more, and when they are again: a metric and a line each."""

import logging
from collections import defaultdict
from collections.abc import Sequence

from gateway.observability.metrics.speculation import SpeculationMetrics
from gateway.session.totals import Named
from specinfer.planning.step_counts import WINDOW, AcceptanceTrend, StepCounts

log = logging.getLogger(__name__)


class AcceptanceWatch:
    """Acceptance over all sessions of a gateway."""

    def __init__(self, metrics: SpeculationMetrics) -> None:
        self._metrics = metrics
        self._trends: dict[Named, AcceptanceTrend] = defaultdict(AcceptanceTrend)

    def count(self, counts: StepCounts, names: Sequence[Named]) -> None:
        """Count a step; `names` are those of the speculators by number."""
        for number, did in counts.speculators.items():
            named = names[number]
            trend = self._trends[named]
            if did.drafts and trend.note(did.drafts, did.accepted):
                self._metrics.collapse(named, trend.collapsed)
                self._say(named, trend)

    def _say(self, named: Named, trend: AcceptanceTrend) -> None:
        usual = "nothing yet" if trend.usual is None else f"{trend.usual:.3f}"
        what = "collapsed" if trend.collapsed else "is as usual again"
        log.warning(
            "acceptance of speculator %s at %s %s: %.3f tokens a draft in the last %d drafts, usual: %s",
            *(named.speculator, named.service, what, trend.latest, WINDOW, usual),
        )
