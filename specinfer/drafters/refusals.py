"""Refused or deferred drafts by request: retried later, or never."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

LONGEST_PAUSE = 63
"""Maximum steps without a retry."""


@dataclass(slots=True)
class _Standing:
    """Standing of one speculator with one request."""

    refused: bool = False
    vain: int = 0
    """Consecutive deferred tries."""
    pause: int = 0
    """Steps that are left out yet."""


@dataclass(slots=True)
class Refusals:
    """Refusals of the speculators of one service or pool, which are numbers."""

    _by_request: defaultdict[str, dict[int, _Standing]] = field(default_factory=lambda: defaultdict(dict))

    def __bool__(self) -> bool:
        return bool(self._by_request)

    def knows(self, request_id: str) -> bool:
        """Return whether any draft of a request was refused or deferred."""
        return request_id in self._by_request

    def willing(self, request_id: str, speculators: Iterable[int]) -> list[int]:
        """Return the speculators to call, once in each step."""
        if request_id not in self._by_request:
            return list(speculators)
        known = self._by_request[request_id]
        return [s for s in speculators if s not in known or _asks(known[s])]

    def refuse(self, request_id: str, speculator: int) -> None:
        """Note an answer of ERROR."""
        self._standing(request_id, speculator).refused = True

    def defer(self, request_id: str, speculator: int) -> None:
        """Note an answer of EXHAUSTED."""
        standing = self._standing(request_id, speculator)
        standing.pause = min((1 << standing.vain) - 1, LONGEST_PAUSE)
        standing.vain = min(standing.vain + 1, LONGEST_PAUSE.bit_length())

    def served(self, request_id: str, speculator: int) -> None:
        """Note a good answer."""
        if request_id in self._by_request:
            self._by_request[request_id].pop(speculator, None)
            if not self._by_request[request_id]:
                del self._by_request[request_id]

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._by_request.pop(request_id, None)

    def clear(self) -> None:
        """Forget all refusals, as another process answers."""
        self._by_request.clear()

    def _standing(self, request_id: str, speculator: int) -> _Standing:
        return self._by_request[request_id].setdefault(speculator, _Standing())


def _asks(standing: _Standing) -> bool:
    if standing.refused:
        return False
    standing.pause -= 1
    return standing.pause < 0
