"""Prometheus metrics of a speculator service.

Counting takes 20 us per step of the engine's thread. The dashboards show which values are bad.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specinfer.drafters.entries import DraftOutcome
from specinfer.remote.draft_counts import DraftCounts
from specinfer.request.statuses import EntryStatus
from specinfer.service.metrics import Declaring, declare_build_info

if TYPE_CHECKING:
    from specinfer.training.online.learner import Learner


class SpeculatorMetrics:
    def __init__(
        self, registry: CollectorRegistry, names: Sequence[str], learner: "Learner | None" = None
    ) -> None:
        """Create the metrics; `names`: the speculators' names by number."""
        new = Declaring(registry, "specinfer_speculator_")
        self._entries = new.counter("entries", "Entries by status.", "status")
        for status in EntryStatus:
            self._entries.add(0, status.name.lower())
        self._drafts = DraftCounts(registry, "specinfer_speculator", names)
        self._step = new.histogram("step_seconds", "Seconds of a step.")
        self.failed_steps = new.counter("failed_steps", "Steps that failed by an internal error.")
        self._requests = new.gauge("requests", "Requests with a context.")
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
            self._entries.add(count, status.name.lower())

    def observe_requests(self, requests: int) -> None:
        self._requests.set(requests)


class LearningMetrics(Collector):
    """Metrics of the learner, read at each scrape."""

    def __init__(self, learner: "Learner") -> None:
        self._learner = learner

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        learner, prefix = self._learner, "specinfer_speculator_learning"
        gauges = {
            "version": ("Version of the weights in use; 0: the initial ones.", learner.version),
            "replay_tokens": ("Tokens of finished requests kept for training.", learner.replay.tokens),
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
