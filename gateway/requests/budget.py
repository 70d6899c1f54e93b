"""How many tree nodes each request of a step gets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """Nodes are cheap until a pass stops being bound by reading the weights."""

    per_request: int
    """Most nodes of one request's tree, root excluded."""
    per_step: int
    """Most nodes of all trees of a step together."""


def split_budget(policy: BudgetPolicy, wanted: Sequence[int]) -> list[int]:
    """Nodes for each request, given how many each could use; equal shares, leftovers passed on.

    The sum never exceeds `policy.per_step`, a share never what was wanted nor `policy.per_request`.
    """
    shares = [0] * len(wanted)
    left = policy.per_step
    # the most modest first, so that what they leave goes to the others
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for done, index in enumerate(order):
        fair = left // (len(order) - done)
        shares[index] = max(0, min(wanted[index], policy.per_request, fair))
        left -= shares[index]
    return shares
