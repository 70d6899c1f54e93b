"""Prometheus metrics of a speculator service (bad values: the dashboards).

Counted on the engine thread: 20 us a step.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specinfer.drafters.entries import DraftOutcome
from specinfer.remote.draft_counts import DraftCounts
from specinfer.service.metrics import TO_SECONDS_S, StepHistogram, declare_build_info
from specinfer.statuses import EntryStatus

if TYPE_CHECKING:
    from speculator_svc.learning.learner import Learner


class SpeculatorMetrics:
    """Counts the engine's work."""

    def __init__(
        self, registry: CollectorRegistry, names: Sequence[str], learner: "Learner | None" = None
    ) -> None:
        """Make the metrics; `names` are the speculators', in order."""

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"specinfer_speculator_{name}", documentation, labels, registry=registry)

        entries = counter("entries", "Entries by status.", "status")
        self._entries = {status: entries.labels(status.name.lower()) for status in EntryStatus}
        self._drafts = DraftCounts(registry, "specinfer_speculator", names)
        self._step = StepHistogram(
            "specinfer_speculator_step_seconds", "Time of one step.", TO_SECONDS_S, registry
        )
        self.failed_steps = counter("failed_steps", "Steps that failed by a fault of the service.")
        self._requests = Gauge("specinfer_speculator_requests", "Requests with a context.", registry=registry)
        if learner is not None:
            registry.register(LearningMetrics(learner))
        declare_build_info(registry)

    def observe(
        self, outcomes: Sequence[DraftOutcome], seconds: float, draft_seconds: Sequence[float]
    ) -> None:
        """Count a step; `draft_seconds` per speculator, 0 without a draft."""
        self._step.observe(seconds)
        self._drafts.observe(outcomes, draft_seconds)
        for status, count in Tally([outcome.status for outcome in outcomes]).items():
            self._entries[status].inc(count)

    def observe_requests(self, requests: int) -> None:
        """Show the number of requests with a context."""
        self._requests.set(requests)


class LearningMetrics(Collector):
    """State of the learner, read when it is scraped."""

    def __init__(self, learner: "Learner") -> None:
        self._learner = learner

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics by their names."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        learner, prefix = self._learner, "specinfer_speculator_learning"
        gauges = {
            "version": ("Version of the weights in use; 0: the initial ones.", learner.version),
            "replay_tokens": ("Tokens of ended requests kept for training.", learner.replay.tokens),
            "held_out_tokens_per_step": (
                "Tokens per step on held-out texts at the last evaluation; 0: none.",
                learner.held_out_rate,
            ),
        }
        for name, (documentation, value) in gauges.items():
            yield GaugeMetricFamily(f"{prefix}_{name}", documentation, value)
        counts = {
            "offers": ("Offered weights.", learner.counts.offers),
            "swaps": ("Accepted weights.", learner.counts.swaps),
            "take_backs": ("Rolled back weights.", learner.counts.take_backs),
        }
        for name, (documentation, value) in counts.items():
            yield CounterMetricFamily(f"{prefix}_{name}", documentation, value)
