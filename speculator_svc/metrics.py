"""Prometheus metrics of a speculator service. docs/operations.md says what a bad value of each looks like.

Counted on the engine thread: 20 us a step.
"""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from specinfer.drafters.entries import DraftOutcome
from specinfer.outcomes import EntryStatus
from specinfer.service.metrics import TO_SECONDS_S, StepHistogram, declare_build_info
from specinfer.speculators.draft_counts import DraftCounts


class SpeculatorMetrics:
    """Counts the engine's work."""

    def __init__(self, registry: CollectorRegistry, names: Sequence[str]) -> None:
        """Make the metrics; `names` are those of the speculators."""

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"specinfer_speculator_{name}", documentation, labels, registry=registry)

        entries = counter("entries", "Entries by outcome.", "status")
        self._entries = {status: entries.labels(status.name.lower()) for status in EntryStatus}
        self._drafts = DraftCounts(registry, "specinfer_speculator", names)
        self._step = StepHistogram(
            "specinfer_speculator_step_seconds", "Time of one step.", TO_SECONDS_S, registry
        )
        self.failed_steps = counter("failed_steps", "Steps that failed by a fault of the service.")
        self._held = Gauge("specinfer_speculator_requests", "Requests with a context.", registry=registry)
        declare_build_info(registry)

    def observe(
        self, outcomes: Sequence[DraftOutcome], seconds: float, draft_seconds: Sequence[float]
    ) -> None:
        """Count one step; `draft_seconds` of every speculator, 0 if it did not draft."""
        self._step.observe(seconds)
        self._drafts.observe(outcomes, draft_seconds)
        for status, count in Tally([outcome.status for outcome in outcomes]).items():
            self._entries[status].inc(count)

    def observe_held(self, requests: int) -> None:
        """Show the number of requests with a context."""
        self._held.set(requests)
