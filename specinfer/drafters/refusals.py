"""Decide which speculators to call again after refused or deferred drafts."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from specinfer.errors import ExhaustedError, FaultError, SpecInferError

LONGEST_PAUSE = 63
"""Maximum steps before a deferred draft is retried."""


def is_momentary(error: SpecInferError) -> bool:
    """Return whether a failed draft may succeed soon: after a full cache or a fault."""
    return isinstance(error, (ExhaustedError, FaultError))


@dataclass(slots=True)
class _Standing:
    """Refusals of one speculator to draft for one request."""

    refused: bool = False
    deferrals: int = 0
    """Number of consecutive deferred drafts."""
    pause: int = 0
    """Number of steps to skip before the next try."""


@dataclass(slots=True)
class Refusals:
    """Refusals of a pool's speculators, by request and speculator number."""

    _by_request: defaultdict[str, dict[int, _Standing]] = field(default_factory=lambda: defaultdict(dict))

    def __bool__(self) -> bool:
        return bool(self._by_request)

    def knows(self, request_id: str) -> bool:
        """Return whether any draft of a request was refused or deferred."""
        return request_id in self._by_request

    def willing(self, request_id: str, speculators: Iterable[int]) -> list[int]:
        """Return the speculators to call; count one step of the others' pauses."""
        if request_id not in self._by_request:
            return list(speculators)
        known = self._by_request[request_id]
        return [s for s in speculators if s not in known or _asks(known[s])]

    def refuse(self, request_id: str, speculator: int) -> None:
        """Record an answer with status ERROR: never call again for this request."""
        self._standing(request_id, speculator).refused = True

    def defer(self, request_id: str, speculator: int) -> None:
        """Record status EXHAUSTED: call again after a pause that doubles each time."""
        standing = self._standing(request_id, speculator)
        standing.pause = min((1 << standing.deferrals) - 1, LONGEST_PAUSE)
        standing.deferrals = min(standing.deferrals + 1, LONGEST_PAUSE.bit_length())

    def served(self, request_id: str, speculator: int) -> None:
        """Record a draft: drop the request's earlier refusals by the speculator."""
        if request_id in self._by_request:
            self._by_request[request_id].pop(speculator, None)
            if not self._by_request[request_id]:
                del self._by_request[request_id]

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._by_request.pop(request_id, None)

    def clear(self) -> None:
        """Drop all refusals: call this when another process answers."""
        self._by_request.clear()

    def _standing(self, request_id: str, speculator: int) -> _Standing:
        return self._by_request[request_id].setdefault(speculator, _Standing())


def _asks(standing: _Standing) -> bool:
    if standing.refused:
        return False
    standing.pause -= 1
    return standing.pause < 0
