"""Metrics of steps: their durations and failures."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from gateway.observability.metrics.planner import PlannerMetrics
from gateway.observability.metrics.speculation import SpeculationMetrics
from gateway.session.totals import PHASES, Named
from specinfer.planning.feedback import FinishedStep
from specinfer.service.metrics import COUNTS, TO_SECONDS_S, StepCounter, StepHistogram


class StepMetrics:
    """Counts steps, while the next step's drafts are under way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.speculation, self.planner = SpeculationMetrics(registry), PlannerMetrics(registry)
        self._batch = StepHistogram(
            "specinfer_iteration_batch_size", "Requests in a step.", COUNTS[1:], registry
        )
        self._phase = StepHistogram(
            "specinfer_iteration_phase_seconds",
            "Time of each phase of a step.",
            TO_SECONDS_S,
            registry,
            "phase",
            PHASES,
        )
        self._bubbles = StepCounter(
            "specinfer_bubble_seconds",
            "Time in which the verifier had nothing to do, as drafts were made.",
            ("waiting",),
            registry,
        )
        self.preemptions = Counter(
            "specinfer_preemptions", "Requests that had to give their cache to others.", registry=registry
        )
        self.failed_steps = Counter(
            "specinfer_failed_steps",
            "Steps, and requests in them, that failed by a fault of the gateway.",
            registry=registry,
        )
        self.verifier_failures = Counter(
            "specinfer_verifier_failures", "Steps that the verifier did not answer.", registry=registry
        )

    def count(self, step: FinishedStep, names: Sequence[Named]) -> None:
        """Count a step; `names` are those of the speculators by number."""
        for phase, seconds in zip(PHASES, step.phases, strict=True):
            self._phase.observe(seconds, phase)
        self._batch.observe(len(step.entries))
        self._bubbles.add(step.times.drafted - step.times.started, "verifier")
        self.speculation.count(step, names)
        self.planner.count(step, names)

    def announce(self, names: Sequence[Named]) -> None:
        """Begin counts of the speculators that were reached at 0."""
        self.speculation.announce(names)
        self.planner.announce(names)
