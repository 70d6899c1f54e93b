"""Who is admitted next: priority first, then the caller with the fewest running requests. Pure.

Promise: whenever a request is admitted, no caller with a waiting request of the same priority has fewer
running requests than the admitted one's caller had. (Running requests of all priorities count.) Among
callers with equally many, the one that was admitted least recently comes first; among its requests, the
one that arrived first. So, within one priority, callers that have nothing running get the next free slots,
one each, however many requests others have waiting.
"""

from collections import Counter
from collections.abc import Iterator

from specinfer.scheduling.ranking import Ranking
from specinfer.scheduling.request import RequestState

QUEUE_SHARE = 4
"""A named caller may have as many requests waiting as this times the places that are free (a dynamic
threshold, Choudhury and Hahne 1998). So one caller alone can take four fifths of the queue, several share it
evenly, and some places are always left for who comes next."""


class WaitingQueue:
    """Requests that wait for admission, and how many each caller has running."""

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        self._callers: Ranking[str] = Ranking()
        """Callers with waiting requests, in the order in which one of theirs is admitted."""
        self._own: dict[str, Ranking[str]] = {}
        """Of each of them the ids of its waiting requests, by priority and arrival."""
        self._running: Counter[str] = Counter()
        self._admitted: dict[str, int] = {}
        """Number of a caller's latest admission. Kept for callers without requests, too: who comes back
        must not be taken for new. As large as the number of API keys."""
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """In no particular order."""
        return iter(self._states.values())

    def running_of(self, caller: str) -> int:
        """Requests of a caller that run."""
        return self._running[caller]

    def full_for(self, caller: str, places: int) -> str:
        """Why no further request of the caller may wait in a queue of so many places; empty if one may."""
        free, own = places - len(self), len(self._own.get(caller, ()))
        if free <= 0:
            return f"queue full: {len(self)} requests are waiting"
        if caller and own >= QUEUE_SHARE * free:
            return f"queue full for {caller!r}: {own} of its requests are waiting, {free} places are left"
        return ""

    def push(self, state: RequestState) -> None:
        """Lets a request wait."""
        request = state.request
        self._states[request.request_id] = state
        own = self._own.setdefault(request.caller, Ranking())
        own.place(request.request_id, (-request.priority, *state.place))
        self._rank(request.caller)

    def first(self) -> RequestState | None:
        """The request to admit next; None if none waits."""
        caller = self._callers.first()
        return None if caller is None else self._head(caller)

    def last(self, most: int) -> list[str]:
        """Ids of up to so many requests that would be admitted last: lowest priority, then latest arrival."""
        ranked = sorted(self, key=lambda state: (-state.request.priority, *state.place), reverse=True)
        return [state.request.request_id for state in ranked[:most]]

    def admit(self, state: RequestState) -> None:
        """A waiting request runs from now on."""
        caller = state.request.caller
        self._admissions += 1
        self._admitted[caller] = self._admissions
        self._running[caller] += 1
        self.remove(state)

    def leave(self, state: RequestState) -> None:
        """A running request runs no longer."""
        caller = state.request.caller
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._rank(caller)

    def remove(self, state: RequestState) -> None:
        """Takes a waiting request out."""
        request_id, caller = state.request.request_id, state.request.caller
        del self._states[request_id]
        self._own[caller].remove(request_id)
        if not len(self._own[caller]):
            del self._own[caller]
        self._rank(caller)

    def _rank(self, caller: str) -> None:
        if caller not in self._own:
            return self._callers.remove(caller)
        head = self._head(caller)
        admitted = self._admitted.get(caller, 0)
        rank = (-head.request.priority, self._running[caller], admitted, *head.place)
        return self._callers.place(caller, rank)

    def _head(self, caller: str) -> RequestState:
        request_id = self._own[caller].first()
        assert request_id is not None, "callers without requests are removed"
        return self._states[request_id]
