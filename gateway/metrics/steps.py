"""What steps do: how long their phases take, what is drafted and accepted, and what the planner chose."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from gateway.planning.feedback import FinishedStep
from gateway.planning.step_counts import SpeculatorStep, StepCounts
from specinfer.service.histogram import COUNTS, TO_SECONDS_S, StepHistogram

PHASES = ("draft", "merge", "verify", "commit")
OUTCOMES = ("ok", "late", "failed", "malformed", "stale")
"""Of drafts; see `gateway.clients.draft_books`."""
VERIFIER = "verifier"
"""As the `service` of a resync of the verifier's."""


class Named(NamedTuple):
    """A speculator, as labels name it."""

    service: str
    """Its service's address."""
    speculator: str


class _Speculator:
    """The children of one speculator's labels."""

    def __init__(self, metrics: "StepMetrics", named: Named) -> None:
        self.drafts = metrics.drafts.labels(*named)
        self.drafted = metrics.drafted.labels(*named)
        self.accepted = metrics.accepted.labels(*named)
        self.nodes = [metrics.nodes.labels(named.speculator, s) for s in ("proposed", "kept", "duplicate")]
        self.wins = metrics.wins.labels(named.speculator)

    def count(self, did: SpeculatorStep) -> None:
        """Adds a step."""
        if did.drafts:
            self.drafts.inc(did.drafts)
            self.drafted.inc(did.kept)
        if did.accepted:
            self.accepted.inc(did.accepted)
        for nodes, count in zip(self.nodes, (did.proposed, did.kept, did.duplicate), strict=True):
            if count:
                nodes.inc(count)
        if did.wins:
            self.wins.inc(did.wins)


class StepMetrics:
    """Counts steps. A step of one request and two speculators takes it 35 us, one of 16 requests 60 us more
    (`tests/unit/gateway/test_metrics.py` has the loop), while the next step's drafts are under way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"specinfer_{name}", documentation, labels, registry=registry)

        by_speculator = ("service", "speculator")
        self.batch = StepHistogram(
            "specinfer_iteration_batch_size", "Requests in a step.", COUNTS[1:], registry
        )
        self.phase = StepHistogram(
            "specinfer_iteration_phase_seconds",
            "Time of each phase of a step.",
            TO_SECONDS_S,
            registry,
            "phase",
            PHASES,
        )
        self.drafts = counter(
            "spec_decode_num_drafts", "Verified trees with nodes of a speculator's.", *by_speculator
        )
        self.drafted = counter(
            "spec_decode_num_draft_tokens", "Verified nodes that a speculator proposed.", *by_speculator
        )
        self.accepted = counter(
            "spec_decode_num_accepted_tokens", "Accepted nodes that a speculator proposed.", *by_speculator
        )
        positions = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted nodes by depth; position 0 is the child of the root.",
            "position",
        )
        self._position = cache(positions.labels)
        self.nodes = counter(
            "tree_nodes",
            "Nodes that a speculator proposed; of those what was kept to be verified; of those what another "
            "speculator proposed, too (duplicate).",
            *("speculator", "stage"),
        )
        self.depth = StepHistogram(
            "specinfer_accepted_depth",
            "Accepted nodes of a verified tree that had nodes below its root.",
            range(17),
            registry,
        )
        self.wins = counter(
            "speculator_wins", "Trees of which a speculator proposed the whole accepted path.", "speculator"
        )
        outcomes = counter(
            "drafts",
            "Drafts asked for, by what came: ok (in time; perhaps nothing to propose), late, failed, "
            "malformed, stale (its request had ended).",
            *("service", "outcome"),
        )
        self._outcome = cache(outcomes.labels)
        self._quarantine = cache(
            counter(
                "speculator_quarantines",
                "Times that a speculator was left out because its trees were malformed again and again.",
                "speculator",
            ).labels
        )
        self._resync = cache(
            counter(
                "resyncs",
                "Requests of which a service held something else than the gateway thought, so that all is "
                "sent again; `verifier` stands for the verifier.",
                "service",
            ).labels
        )
        self._choice = cache(counter("planner_steps", "Steps by why they were planned so.", "reason").labels)
        self._asked = cache(
            counter("planner_asked", "Steps in which the planner wanted a speculator.", "speculator").labels
        )
        self.step_nodes = StepHistogram(
            "specinfer_planner_step_nodes", "Tree nodes verified in a step, roots excluded.", COUNTS, registry
        )
        self._expected_s = counter("planner_expected_seconds", "Time expected of planned steps, summed.")
        self._actual_s = counter("planner_actual_seconds", "Time that those steps took, summed.")
        self._expected_tokens = counter("planner_expected_tokens", "Tokens expected of those steps, summed.")
        self._actual_tokens = counter("planner_actual_tokens", "Tokens that those steps brought, summed.")
        self.preemptions = counter("preemptions", "Requests that had to give their cache to others.")
        self.failed_steps = counter("failed_steps", "Steps that failed by a fault of the gateway.")
        self.verifier_failures = counter("verifier_failures", "Steps that the verifier did not answer.")
        self._speculators: dict[Named, _Speculator] = {}

    def count(self, step: FinishedStep, counts: StepCounts, names: Sequence[Named]) -> None:
        """Counts a step; `names` are those of the speculators by number."""
        for phase, (start, stop) in zip(PHASES, pairwise(step.times[1:]), strict=True):
            self.phase.observe(stop - start, phase)
        self.batch.observe(len(step.entries))
        for number, did in counts.speculators.items():
            self._of(names[number]).count(did)
        for depth, trees in Tally(counts.depths).items():
            self.depth.observe(depth, times=trees)
        for position in range(max(counts.depths, default=0)):
            self._position(str(position)).inc(sum([depth > position for depth in counts.depths]))
        if counts.resyncs:
            self._resync(VERIFIER).inc(counts.resyncs)
        self._count_choice(step, counts, names)

    def service(
        self, address: str, outcomes: Mapping[str, int], resyncs: int, quarantines: Mapping[str, int]
    ) -> None:
        """Counts what became of drafts of a speculator service; `quarantines` by the speculator's name."""
        for outcome, count in outcomes.items():
            self._outcome(address, outcome).inc(count)
        if resyncs:
            self._resync(address).inc(resyncs)
        for name, count in quarantines.items():
            self._quarantine(name).inc(count)

    def announce(self, names: Sequence[Named]) -> None:
        """Speculators that were reached: what is counted of them begins at 0."""
        for named in names:
            self._of(named)
            self._quarantine(named.speculator)
            self._asked(named.speculator)
            self._resync(named.service)
            for outcome in OUTCOMES:
                self._outcome(named.service, outcome)

    def _count_choice(self, step: FinishedStep, counts: StepCounts, names: Sequence[Named]) -> None:
        """What the planner chose, and how far it was off."""
        choice = step.choice
        self._choice(choice.reason).inc()
        for number in choice.speculators:
            self._asked(names[number].speculator).inc()
        self.step_nodes.observe(counts.nodes)
        if choice.seconds:
            self._expected_s.inc(choice.seconds)
            self._actual_s.inc(step.seconds)
            self._expected_tokens.inc(choice.tokens)
            self._actual_tokens.inc(sum([1 + len(verdict.accepted) for verdict in step.verdicts.values()]))

    def _of(self, named: Named) -> _Speculator:
        found = self._speculators.get(named)
        if found is None:
            found = self._speculators[named] = _Speculator(self, named)
        return found
