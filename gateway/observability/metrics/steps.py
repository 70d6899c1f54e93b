"""Define metrics of steps: durations, plans, expected and actual results."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from gateway.observability.metrics.speculation import SpeculationMetrics
from gateway.session.totals import PHASES, Named
from specinfer.planning.choice import Reason
from specinfer.planning.feedback import FinishedStep
from specinfer.service.metrics import COUNTS, TO_SECONDS_S, Declaring


class PlannerMetrics:
    """Metrics of the planner's choices: expected and actual seconds and tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Declaring(registry, "specinfer_planner_")
        self._choices = new.counter("steps", "Steps by the reason of their plan.", "reason")
        self._asked = new.counter("asked", "Steps in which the planner asked a speculator.", "speculator")
        self._nodes = new.histogram("step_nodes", "Tree nodes verified in a step, roots excluded.", COUNTS)
        self._expected_s = new.counter("expected_seconds", "Sum of the expected times of planned steps.")
        self._actual_s = new.counter("actual_seconds", "Sum of the actual times of planned steps.")
        self._expected_tokens = new.counter("expected_tokens", "Sum of the expected tokens of planned steps.")
        self._actual_tokens = new.counter("actual_tokens", "Sum of the actual tokens of planned steps.")
        for reason in Reason:
            self._choices.add(0, reason)

    def count(self, step: FinishedStep, names: Sequence[Named]) -> None:
        """Count a step; `names[i]` is the name of speculator i."""
        choice = step.choice
        self._choices.add(1, choice.reason)
        for number in choice.speculators:
            self._asked.add(1, names[number].speculator)
        self._nodes.observe(step.counts.drafted)
        if choice.seconds:
            self._expected_s.add(choice.seconds)
            self._actual_s.add(step.seconds)
            self._expected_tokens.add(choice.tokens)
            self._actual_tokens.add(sum([1 + len(verdict.accepted) for verdict in step.verdicts.values()]))

    def announce(self, names: Sequence[Named]) -> None:
        """Export 0 for counts of these speculators that do not exist yet."""
        for named in names:
            self._asked.add(0, named.speculator)


class StepMetrics:
    """Metrics of finished steps: phases, batch size, speculation, planner."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.speculation, self.planner = SpeculationMetrics(registry), PlannerMetrics(registry)
        new = Declaring(registry)
        self._batch = new.histogram("iteration_batch_size", "Requests in a step.", COUNTS[1:])
        phases = "Time of a phase of a step: draft, merge, verify or commit."
        self._phase = new.histogram("iteration_phase_seconds", phases, TO_SECONDS_S, "phase", PHASES)
        self._bubbles = new.counter(
            "bubble_seconds", "Time in which the verifier waited for drafts.", "waiting"
        )

    def count(self, step: FinishedStep, names: Sequence[Named]) -> None:
        """Count a step; `names[i]` is the name of speculator i."""
        for phase, seconds in zip(PHASES, step.phases, strict=True):
            self._phase.observe(seconds, phase)
        self._batch.observe(len(step.entries))
        self._bubbles.add(step.times.drafted - step.times.started, "verifier")
        self.speculation.count(step, names)
        self.planner.count(step, names)

    def announce(self, names: Sequence[Named]) -> None:
        """Export 0 for counts of these speculators that do not exist yet."""
        self.speculation.announce(names)
        self.planner.announce(names)
