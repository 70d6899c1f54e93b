"""Which replica of a speculator service drafts for a request. Pure.

A request stays where it is, because its context is there; one whose replica is away goes to the replica that
has the fewest, which is then sent the context once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence


class ReplicaShares:
    """How the replicas of one service share the requests."""

    def __init__(self) -> None:
        self._place: dict[str, str] = {}
        """Address of the replica, by request."""

    def divide(self, request_ids: Iterable[str], present: Sequence[str]) -> dict[str, str]:
        """The replica of each request, of those present; nothing where there are none."""
        if not present:
            return {}
        names = list(request_ids)
        load = Counter(dict.fromkeys(present, 0))
        load.update(place for place in self._place.values() if place in load)
        for name in names:
            if self._place.get(name) not in load:
                self._place[name] = least = min(present, key=load.__getitem__)
                load[least] += 1
        return {name: self._place[name] for name in names}

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops requests that have ended."""
        for name in request_ids:
            self._place.pop(name, None)
