"""Store hidden states of a range of context positions. Pure.

The range grows at its end and shrinks at its start. It is a queue of pieces, so that the cost of a step does
not depend on the range's length.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Bfloat16 = NDArray[np.int16]
"""[positions, layers, hidden]"""


class States:
    """Hidden states of positions from `start` to `stop` (exclusive)."""

    def __init__(self, start: int, states: Bfloat16) -> None:
        self.start, self.stop, self.nbytes = start, start, 0
        self._pieces: deque[Bfloat16] = deque()
        self._empty = states[:0]
        self.append(states)

    def append(self, states: Bfloat16) -> None:
        """Append states of the positions from `stop`."""
        if len(states):
            self._pieces.append(states)
            self.stop += len(states)
            self.nbytes += states.nbytes

    def read(self, start: int, max_rows: int | None = None) -> Bfloat16:
        """Return at most `max_rows` states from the stored position `start`."""
        parts: list[Bfloat16] = []
        begins = self.stop
        for piece in reversed(self._pieces):
            if begins <= start:
                break
            begins -= len(piece)
            parts.append(piece[max(0, start - begins) :])
        states = parts[0] if len(parts) == 1 else np.concatenate([self._empty, *reversed(parts)])
        return states[:max_rows]

    def drop(self, position: int) -> None:
        """Remove the states before a position."""
        while self._pieces and self.start < position:
            piece = self._pieces.popleft()
            gone = min(len(piece), position - self.start)
            self.start += gone
            self.nbytes -= piece[:gone].nbytes
            if gone < len(piece):
                self._pieces.appendleft(piece[gone:])
