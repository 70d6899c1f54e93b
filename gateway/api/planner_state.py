"""The planner's choice for a step, as a message."""

from collections.abc import Sequence

from specinfer.planning.choice import Choice
from specinfer.v1 import generation_pb2


def planner_state(choice: Choice, names: Sequence[str]) -> generation_pb2.PlannerState:
    """Return a step's choice and its reason; `names` are those of the speculators by number."""
    return generation_pb2.PlannerState(
        speculators=[names[speculator] for speculator in sorted(choice.speculators)],
        tree_nodes=choice.nodes,
        step_nodes=choice.step_nodes,
        expected_tokens=choice.tokens,
        expected_seconds=choice.seconds,
        plain_tokens_per_second=choice.plain_speed,
        reason=choice.reason,
    )
