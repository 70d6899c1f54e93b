"""Counters of an `LLM`, for `get_metrics`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specinfer.engine.local_pool import MemberCounts
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.statistics import SpeculationCounts


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    value: float


@dataclass(slots=True)
class Totals:
    """Counts over all steps since the start."""

    steps: int = 0
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    pass_seconds: float = 0.0
    draft_seconds: float = 0.0
    step_seconds: float = 0.0
    failed_steps: int = 0
    """Steps that the planner ignored because learning from them failed."""
    failed_drafts: int = 0
    """Steps that decoded plainly because drafting failed."""

    def add(self, step: FinishedStep) -> None:
        self.steps += 1
        self.pass_seconds += step.pass_s
        self.draft_seconds += sum(draft.total_s for draft in step.draft_times)
        self.step_seconds += step.seconds
        self.counts += step.counts

    def metrics(self, running: int, waiting: int) -> list[Metric]:
        """Return all counters, with vLLM's names if the meaning is the same."""
        return [
            Metric("num_requests_running", running),
            Metric("num_requests_waiting", waiting),
            Metric("generation_tokens", self.counts.tokens),
            Metric("spec_decode_num_draft_tokens", self.counts.drafted),
            Metric("spec_decode_num_accepted_tokens", self.counts.accepted),
            *(
                Metric(f"spec_decode_num_accepted_tokens_per_pos[{depth}]", count)
                for depth, count in enumerate(self.counts.positions)
            ),
            Metric("steps", self.steps),
            Metric("failed_steps", self.failed_steps + self.failed_drafts),
            Metric("pass_seconds", self.pass_seconds),
            Metric("draft_seconds", self.draft_seconds),
            Metric("step_seconds", self.step_seconds),
        ]


def speculator_metrics(names: Sequence[str], counts: Mapping[int, MemberCounts]) -> list[Metric]:
    """Return each speculator's drafted nodes and failed drafts, by name."""
    metrics = []
    for number, name in enumerate(names):
        of_it = counts.get(number, MemberCounts())
        metrics.append(Metric(f"speculator_draft_tokens[{name}]", of_it.nodes))
        metrics.append(Metric(f"speculator_failed_drafts[{name}]", of_it.failed + of_it.malformed))
    return metrics
