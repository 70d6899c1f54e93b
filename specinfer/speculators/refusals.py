"""Which speculators are not asked about which requests, and for how long. Pure.

ERROR        they do not go together: not again in this request
EXHAUSTED    not in this step, for want of room or by a fault: asked again in the next one; from the second
             time in a row on after 1, 3, 7, .. further steps, as each vain try takes time from all others
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

LONGEST_PAUSE = 63
"""Steps."""


@dataclass(slots=True)
class _Standing:
    """Of one speculator with one request."""

    refused: bool = False
    vain: int = 0
    """Tries in a row that were put off."""
    pause: int = 0
    """Steps that are left out yet."""


@dataclass(slots=True)
class Refusals:
    """One service's; speculators are numbers."""

    _by_request: defaultdict[str, dict[int, _Standing]] = field(default_factory=lambda: defaultdict(dict))

    def __bool__(self) -> bool:
        return bool(self._by_request)

    def willing(self, request_id: str, speculators: Iterable[int]) -> list[int]:
        """Those to be asked in this step; call it once in each."""
        if request_id not in self._by_request:
            return list(speculators)
        known = self._by_request[request_id]
        return [s for s in speculators if s not in known or _asks(known[s])]

    def refuse(self, request_id: str, speculator: int) -> None:
        """Its answer was ERROR."""
        self._standing(request_id, speculator).refused = True

    def put_off(self, request_id: str, speculator: int) -> None:
        """Its answer was EXHAUSTED."""
        standing = self._standing(request_id, speculator)
        standing.pause = min((1 << standing.vain) - 1, LONGEST_PAUSE)
        standing.vain = min(standing.vain + 1, LONGEST_PAUSE.bit_length())

    def served(self, request_id: str, speculator: int) -> None:
        """It answered as it should."""
        if request_id in self._by_request:
            self._by_request[request_id].pop(speculator, None)
            if not self._by_request[request_id]:
                del self._by_request[request_id]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Requests that have ended."""
        for name in request_ids:
            self._by_request.pop(name, None)

    def clear(self) -> None:
        """Another process answers: everything is open again."""
        self._by_request.clear()

    def _standing(self, request_id: str, speculator: int) -> _Standing:
        return self._by_request[request_id].setdefault(speculator, _Standing())


def _asks(standing: _Standing) -> bool:
    if standing.refused:
        return False
    standing.pause -= 1
    return standing.pause < 0
