"""Prometheus metrics of a speculator service."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from specinfer.errors import SpecInferError
from speculator_svc.engine import DraftOutcome


class SpeculatorMetrics:
    """Counts what the engine did."""

    def __init__(self, registry: CollectorRegistry, names: Sequence[str]) -> None:
        """`names` are those of the speculators."""
        self._names = names
        self._entries = Counter(
            "specinfer_speculator_entries", "Entries by outcome.", ["status"], registry=registry
        )
        self._nodes = Counter(
            "specinfer_speculator_nodes", "Tree nodes drafted.", ["speculator"], registry=registry
        )
        self._failures = Counter(
            "specinfer_speculator_failures", "Drafts that failed.", ["speculator"], registry=registry
        )
        self._step = Histogram(
            "specinfer_speculator_step_seconds",
            "Time of one step.",
            buckets=[0.0005 * 2**i for i in range(14)],
            registry=registry,
        )
        self.failed_steps = Counter(
            "specinfer_speculator_failed_steps",
            "Steps that failed by a fault of the service.",
            registry=registry,
        )
        self._held = Gauge("specinfer_speculator_requests", "Requests with a context.", registry=registry)

    def observe(self, outcomes: Sequence[DraftOutcome], seconds: float) -> None:
        """Counts one step."""
        self._step.observe(seconds)
        for outcome in outcomes:
            self._entries.labels(outcome.status.name.lower()).inc()
            for speculator, found in outcome.drafts:
                name = self._names[speculator]
                if isinstance(found, SpecInferError):
                    self._failures.labels(name).inc()
                else:
                    self._nodes.labels(name).inc(len(found) - 1)

    def observe_held(self, requests: int) -> None:
        """Shows how many requests have a context."""
        self._held.set(requests)
