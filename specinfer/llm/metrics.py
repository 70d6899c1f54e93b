"""Counters of an `LLM`, returned by `get_metrics`."""

from dataclasses import dataclass, field
from itertools import zip_longest

from specinfer.planning.feedback import FinishedStep
from specinfer.planning.step_counts import count_step


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter."""

    name: str
    value: float


@dataclass(slots=True)
class Totals:
    """Counts over all steps since the start."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    pass_seconds: float = 0.0
    draft_seconds: float = 0.0
    step_seconds: float = 0.0
    failed_steps: int = 0
    """Steps from which nothing was learnt."""
    failed_drafts: int = 0
    """Steps that decoded plainly because drafting failed."""
    accepted_by_depth: list[int] = field(default_factory=list)
    """[d]: steps in which the node at depth d + 1 was accepted."""

    def add(self, step: FinishedStep) -> None:
        """Count a step."""
        self.steps += 1
        self.pass_seconds += step.pass_s
        self.draft_seconds += sum(draft.total_s for draft in step.draft_times)
        self.step_seconds += step.seconds
        counts = count_step(step)
        self.tokens += counts.tokens
        self.drafted += counts.nodes
        self.accepted += counts.accepted
        both = zip_longest(self.accepted_by_depth, counts.positions, fillvalue=0)
        self.accepted_by_depth = [before + new for before, new in both]

    def metrics(self, running: int, waiting: int) -> list[Metric]:
        """Return all counters, under vLLM's names where they mean the same."""
        return [
            Metric("num_requests_running", running),
            Metric("num_requests_waiting", waiting),
            Metric("generation_tokens", self.tokens),
            Metric("spec_decode_num_draft_tokens", self.drafted),
            Metric("spec_decode_num_accepted_tokens", self.accepted),
            *(
                Metric(f"spec_decode_num_accepted_tokens_per_pos[{depth}]", count)
                for depth, count in enumerate(self.accepted_by_depth)
            ),
            Metric("steps", self.steps),
            Metric("failed_steps", self.failed_steps + self.failed_drafts),
            Metric("pass_seconds", self.pass_seconds),
            Metric("draft_seconds", self.draft_seconds),
            Metric("step_seconds", self.step_seconds),
        ]
