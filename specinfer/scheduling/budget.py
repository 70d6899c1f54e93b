"""Node budgets: how many tree nodes a request and a step may have at most. Pure.

A budget bounds messages, drafts and the room that the scheduler keeps in the cache;
`specinfer.planning.budget` derives it from what passes cost. What a step really gets is the planner's choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """Most nodes, roots excluded."""

    per_request: int
    per_step: int
    room: int | None = None
    """Tokens that the verifier accepts in one step, roots included; None for no limit."""

    def of_step(self, batch: int, requests: int) -> int:
        """Most nodes of a step in which so many of the batch's requests have trees."""
        room = self.per_step if self.room is None else max(0, self.room - batch)
        return min(self.per_step, requests * self.per_request, room)


def split_budget(budget: NodeBudget, wanted: Sequence[int]) -> list[int]:
    """Nodes for each request, given how many each could use; equal shares, leftovers passed on.

    The sum never exceeds `budget.per_step`, a share never what was wanted nor `budget.per_request`.
    """
    return fair_shares(budget.per_step, [min(most, budget.per_request) for most in wanted])


def fair_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Equal shares of a total; what some do not want goes to the others (max-min fairness)."""
    shares = [0] * len(wanted)
    left = total
    # the most modest first, so that what they leave goes to the others
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for done, index in enumerate(order):
        fair = left // (len(order) - done)
        shares[index] = max(0, min(wanted[index], fair))
        left -= shares[index]
    return shares
