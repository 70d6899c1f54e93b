"""Look up unfinished requests by id, deadline and cancellation. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from specinfer.errors import AlreadyExistsError, NotFoundError
from specinfer.scheduling.queue import Ranking
from specinfer.scheduling.request import RequestState


class RequestTable:
    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        self._cancelled: list[RequestState] = []
        self._deadlines: Ranking[str] = Ranking()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def states(self) -> Mapping[str, RequestState]:
        """All requests by id, in order of submission. Read-only."""
        return MappingProxyType(self._states)

    def check_new(self, request_id: str) -> None:
        """Check that no request has this id."""
        if request_id in self._states:
            raise AlreadyExistsError(f"request_id = {request_id!r}: already waiting or running")

    def get(self, request_id: str) -> RequestState:
        """Return the request of this id."""
        if request_id not in self._states:
            raise NotFoundError(f"request_id = {request_id!r}: neither waiting nor running")
        return self._states[request_id]

    def has(self, state: RequestState) -> bool:
        """Return whether the table has this object, not only its request id."""
        return self._states.get(state.request.request_id) is state

    def add(self, state: RequestState) -> None:
        request_id = state.request.request_id
        self._states[request_id] = state
        if state.request.deadline_s is not None:
            self._deadlines.place(request_id, (state.deadline_at,))

    def remove(self, state: RequestState) -> None:
        """Remove a request that has finished or moved to another gateway."""
        del self._states[state.request.request_id]
        self._deadlines.remove(state.request.request_id)

    def cancel(self, request_id: str) -> None:
        """Mark a request as cancelled."""
        state = self.get(request_id)
        if not state.cancelled:
            state.cancelled = True
            self._cancelled.append(state)

    def take_cancelled(self) -> list[RequestState]:
        """Return the requests cancelled since the last call and still unfinished."""
        cancelled, self._cancelled = self._cancelled, []
        return [state for state in cancelled if self.has(state)]

    def overdue(self, now: float) -> RequestState | None:
        """Return the request with the earliest passed deadline, if any."""
        first = self._deadlines.first()
        if first is None or self._states[first].deadline_at > now:
            return None
        return self._states[first]
