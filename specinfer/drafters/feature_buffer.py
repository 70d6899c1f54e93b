"""Hidden states of one request that have come and that not every drafter has read yet."""

from collections.abc import Sequence

import numpy as np

from specinfer.drafters import Features
from specinfer.speculators.states import States

MOST_BYTES = 2**24
"""Of a request: what a drafter does not ask for in time it lacks."""


class FeatureBuffer:
    """A stretch of context positions, with what each drafter was given of it."""

    def __init__(self) -> None:
        self._kept: States | None = None
        self._given: dict[int, int] = {}
        """By drafter, the position up to which it was given some."""

    def add(self, start: int, data: bytes, shape: tuple[int, int]) -> None:
        """States [positions, layers, hidden] in bfloat16 from a context position on; `shape` is (layers,
        hidden). Behind a gap the earlier ones are of no use."""
        kept, states = self._kept, np.frombuffer(data, np.int16).reshape(-1, *shape)
        if kept is not None and kept.stop == start:
            kept.append(states)
        else:
            self._kept = kept = States(start, states)
        most = max(1, MOST_BYTES // max(states[0].nbytes, 1))
        kept.drop(kept.stop - most)

    def take(self, drafter: int, places: Sequence[int]) -> Features | None:
        """What a drafter was not given before, of the layers in these places."""
        kept = self._kept
        if kept is None:
            return None
        start = max(kept.start, self._given.get(drafter, 0))
        self._given[drafter] = kept.stop
        return Features(start, kept.read(start)[:, places])

    def drop(self, drafters: Sequence[int]) -> None:
        """Forgets what all of these were given."""
        kept = self._kept
        if kept is None:
            return
        given = min((self._given.get(drafter, 0) for drafter in drafters), default=kept.stop)
        kept.drop(given)
