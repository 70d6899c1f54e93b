"""Breadth-first search of all reachable states of a model: paths to errors have the fewest actions."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Successors = Callable[[S], Iterable[tuple[str, S]]]


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[S]):
    states: list[S]
    """States in the order of their discovery."""
    arrived: list[tuple[int, str]]
    """For each state the index of the previous state on a shortest path, and the action; -1 for the first."""
    successors: list[list[int]]
    """For each expanded state the indices of its successors."""
    broken: int | None
    """Index of the first state that breaks an invariant, which ended the search; None if there is none."""

    def path(self, index: int) -> list[str]:
        """Return the actions of a shortest path to a state."""
        actions: list[str] = []
        while index >= 0:
            index, action = self.arrived[index]
            actions.append(action)
        return actions[-2::-1]

    def stuck(self, goal: Callable[[S], bool]) -> int | None:
        """Return the first state from which no goal state can be reached; None if there is none."""
        before: list[list[int]] = [[] for _ in self.states]
        for index, following in enumerate(self.successors):
            for successor in following:
                before[successor].append(index)
        front = [index for index, state in enumerate(self.states) if goal(state)]
        reaches = set(front)
        while front:
            front = [index for successor in front for index in before[successor] if index not in reaches]
            reaches.update(front)
        return next((index for index in range(len(self.states)) if index not in reaches), None)


def search(
    first: S, successors: Successors[S], holds: Callable[[S], bool], max_states: int = 400_000
) -> SearchResult[S]:
    """Visit all reachable states until one breaks an invariant.

    Raises:
        AssertionError: if there are more than `max_states` states, since an incomplete search would prove nothing.
    """
    states, arrived, numbers = [first], [(-1, "")], {first: 0}
    edges: list[list[int]] = []
    for index, state in enumerate(_growing(states)):
        if not holds(state):
            return SearchResult(states, arrived, edges, index)
        following = []
        for action, successor in successors(state):
            number = numbers.setdefault(successor, len(states))
            if number == len(states):
                states.append(successor)
                arrived.append((index, action))
            following.append(number)
        edges.append(following)
        assert len(states) <= max_states, f"more than {max_states} states"
    return SearchResult(states, arrived, edges, None)


def _growing(states: list[S]) -> Iterator[S]:
    yield from states  # a list may grow while it is iterated over
