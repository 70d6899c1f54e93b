"""Define a step's choice: speculators, nodes, expected speed and reason."""

from dataclasses import dataclass
from enum import StrEnum

from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TreeWorth

SpeculatorSet = frozenset[int]


class Reason(StrEnum):
    """Reason of a step's choice; the values are labels of metrics."""

    NO_SPECULATORS = "no speculators"
    NOT_WANTED = "no request wants drafts"
    NOT_ADAPTIVE = "not adaptive"
    FASTEST = "fastest"
    PLAIN_IS_FASTER = "plain is faster"
    PROBE_PLAIN = "probe plain"
    PROBE_ALL = "probe all"


@dataclass(frozen=True, slots=True)
class Choice:
    """Speculators and nodes of one step, and the reason for them."""

    speculators: SpeculatorSet = frozenset()
    nodes: int = 0
    """Maximum drafted nodes per request; 0 for plain decoding."""
    step_nodes: int = 0
    """Maximum verified nodes of the step."""
    tokens: float = 0.0
    """Expected new tokens of all requests in the step."""
    seconds: float = 0.0
    """Expected seconds of the step."""
    plain_speed: float = 0.0
    """Tokens per second expected of plain decoding."""
    node_seconds: float = 0.0
    """Mean seconds that one tree node adds to the target's pass."""
    reason: Reason = Reason.NO_SPECULATORS
    batch: int = 0
    """Requests of the step."""

    @property
    def speed(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def node_threshold(self) -> float:
        """Minimum path probability at which drafting and verifying a node pays."""
        return min(max(self.speed, self.plain_speed) * self.node_seconds, 1.0)

    @property
    def worth(self) -> TreeWorth:
        """Thresholds for nodes and levels of this step's trees."""
        return TreeWorth(self.node_threshold, max(self.speed, self.plain_speed))

    def keeps(self, kept: int, path_probability: float) -> bool:
        """Return whether a step with `kept` nodes should verify another."""
        return kept < self.step_nodes and path_probability >= self.node_threshold


PLAIN = Choice()


def fixed_choice(budget: NodeBudget, everybody: SpeculatorSet, batch: int, requests: int) -> Choice:
    """Choose all speculators and the maximum nodes of the budget."""
    max_nodes = budget.of_step(batch, requests)
    nodes = min(budget.per_request, max(1, max_nodes // requests))
    return Choice(everybody, nodes, max_nodes, reason=Reason.NOT_ADAPTIVE)


def batch_size_class(batch: int) -> int:
    """Return the class of a batch size: its binary logarithm, rounded up."""
    return (batch - 1).bit_length()
