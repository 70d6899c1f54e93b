"""Prometheus metrics of a speculator."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from speculator_svc.engine import DraftOutcome


class SpeculatorMetrics:
    """Counts what the engine did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._entries = Counter(
            "specinfer_speculator_entries", "Entries by outcome.", ["status"], registry=registry
        )
        self._nodes = Counter("specinfer_speculator_nodes", "Tree nodes drafted.", registry=registry)
        self._step = Histogram(
            "specinfer_speculator_step_seconds",
            "Time of one step.",
            buckets=[0.0005 * 2**i for i in range(14)],
            registry=registry,
        )
        self._held = Gauge("specinfer_speculator_requests", "Requests with a context.", registry=registry)

    def observe(self, outcomes: Sequence[DraftOutcome], seconds: float) -> None:
        """Counts one step."""
        self._step.observe(seconds)
        for outcome in outcomes:
            self._entries.labels(outcome.status.name.lower()).inc()
            if outcome.tree is not None:
                self._nodes.inc(len(outcome.tree) - 1)

    def observe_held(self, requests: int) -> None:
        """Shows how many requests have a context."""
        self._held.set(requests)
