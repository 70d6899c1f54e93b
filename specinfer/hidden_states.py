"""Hidden states of a stretch of context positions that grows at one end and is forgotten at the other. Pure.

Steps bring a few positions each: they are kept as they came, so that a step costs what it brings, not what is
kept.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Bfloat16 = NDArray[np.int16]
"""[positions, layers, hidden]"""


class States:
    """The stretch from `start` up to `stop`."""

    def __init__(self, start: int, states: Bfloat16) -> None:
        self.start, self.stop, self.nbytes = start, start, 0
        self._pieces: deque[Bfloat16] = deque()
        self._empty = states[:0]
        self.append(states)

    def append(self, states: Bfloat16) -> None:
        """Add the states of the positions behind."""
        if len(states):
            self._pieces.append(states)
            self.stop += len(states)
            self.nbytes += states.nbytes

    def read(self, start: int, most: int | None = None) -> Bfloat16:
        """Return at most this many states, from a position on that is kept."""
        found: list[Bfloat16] = []
        begins = self.stop
        for piece in reversed(self._pieces):
            if begins <= start:
                break
            begins -= len(piece)
            found.append(piece[max(0, start - begins) :])
        states = found[0] if len(found) == 1 else np.concatenate([self._empty, *reversed(found)])
        return states[:most]

    def drop(self, position: int) -> None:
        """Forget the states before a position."""
        while self._pieces and self.start < position:
            piece = self._pieces.popleft()
            gone = min(len(piece), position - self.start)
            self.start += gone
            self.nbytes -= piece[:gone].nbytes
            if gone < len(piece):
                self._pieces.appendleft(piece[gone:])
