"""Visits every state that a model can reach, breadth first: what is found is found by the fewest actions."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Successors = Callable[[S], Iterable[tuple[str, S]]]


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """All that a search saw."""

    states: list[S]
    """In the order in which they were reached."""
    arrived: list[tuple[int, str]]
    """For every state the one before it on a shortest way, and the action between; -1 for the first."""
    successors: list[list[int]]
    """For every state that was expanded those that follow it."""
    broken: int | None
    """The first state that breaks an invariant, if any; the search ended there."""

    def way(self, index: int) -> list[str]:
        """The actions of a shortest way to a state."""
        actions: list[str] = []
        while index >= 0:
            index, action = self.arrived[index]
            actions.append(action)
        return actions[-2::-1]

    def stuck(self, goal: Callable[[S], bool]) -> int | None:
        """The first state from which no state of the goal can be reached, if any."""
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


def search(first: S, successors: Successors[S], holds: Callable[[S], bool], most: int = 400_000) -> Found[S]:
    """Visits every reachable state until one is found for which the invariants do not hold.

    Raises:
        AssertionError: if there are more than `most` states, since a cut search would prove nothing.
    """
    states, arrived, numbers = [first], [(-1, "")], {first: 0}
    edges: list[list[int]] = []
    for index, state in enumerate(_growing(states)):
        if not holds(state):
            return Found(states, arrived, edges, index)
        following = []
        for action, successor in successors(state):
            number = numbers.setdefault(successor, len(states))
            if number == len(states):
                states.append(successor)
                arrived.append((index, action))
            following.append(number)
        edges.append(following)
        assert len(states) <= most, f"more than {most} states"
    return Found(states, arrived, edges, None)


def _growing(states: list[S]) -> Iterator[S]:
    yield from states  # a list may grow while it is iterated over
