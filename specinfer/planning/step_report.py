"""Define reports of finished steps, and the interface of planners."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.tree import TokenTree

Outcomes = Mapping[str, tuple[TokenTree, Sequence[int]]]
"""Verified tree and accepted nodes, by request id."""
_USUAL_DELTA = 16
"""Context tokens per request above which reading dominates drafting."""


class DraftTime(NamedTuple):
    """Times in which one speculator service drafted for one step."""

    service: SpeculatorSet
    """All speculators of the service."""
    own_s: Mapping[int, float]
    """Seconds of each speculator that drafted: they draft one after another."""
    wire_s: float
    """Seconds of messages and of the service's common work."""
    read: int = 0
    """Context tokens read; 0 if reading did not dominate drafting."""
    resident: bool = False
    """True if it drafted in the verifier's process, between passes."""

    @property
    def total_s(self) -> float:
        """Seconds from the request for drafts to the reply."""
        return self.wire_s + sum(self.own_s.values())


@dataclass(frozen=True, slots=True)
class StepReport:
    """Work and times of one step."""

    choice: Choice
    batch: int
    tokens: int
    """Tokens in the target's pass; 0 if it refused all entries."""
    pass_s: float
    drafts: Sequence[DraftTime]
    """Times of every service that answered in time."""
    overhead_s: float
    """Seconds of all other work since the previous step or pause."""
    outcomes: Outcomes
    """Outcomes of the requests that had merged trees."""
    chains: Outcomes = field(default_factory=dict)
    """Outcomes of the requests that had one speculator's chain."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Context tokens by request id when the step began."""
    seconds: float = 0.0
    """Seconds of the whole step, including drafts for the next step."""

    @property
    def idle(self) -> SpeculatorSet:
        """Speculators without a draft in a service that drafted: copies drafted alone."""
        return frozenset(one for draft in self.drafts for one in draft.service - draft.own_s.keys())

    def shows(self, speculators: SpeculatorSet) -> bool:
        """Return whether the step shows the gain and cost of some of its speculators."""
        chosen = self.choice.speculators
        return speculators == chosen or (speculators <= chosen and not speculators & self.idle)

    @property
    def new_tokens(self) -> int:
        """Committed tokens: a bonus token per request, and all accepted nodes."""
        outcomes = (*self.outcomes.values(), *self.chains.values())
        return self.batch + sum([len(accepted) for _, accepted in outcomes])


class StepPlanner(Protocol):
    """Chooses steps, and learns from their outcomes."""

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set each service's speculators; within a service they draft one by one."""

    def choose(self, batch: int, contexts: Mapping[str, int]) -> Choice:
        """Return the choice for the next step of a batch.

        Args:
            batch: requests of the step.
            contexts: context tokens of the requests that want drafts, by request id.
        """

    def observe(self, report: StepReport) -> None:
        """Learn from a step."""

    def close(self) -> None:
        """Keep what was learned."""


def tokens_read(tokens: Sequence[int]) -> int:
    """Return the sum of `tokens` if reading dominates drafting, else 0.

    `tokens` are the context tokens sent for each request.
    """
    return sum(tokens) if max(tokens) > _USUAL_DELTA else 0
