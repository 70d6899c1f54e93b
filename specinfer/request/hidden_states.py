"""Stores the target's hidden states for a range of context positions.

The range grows at its end and shrinks at its start. It is a queue of arrays: appending never copies the range.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Bfloat16 = NDArray[np.int16]
"""Bfloat16 numbers as their 16 bits, [positions, layers, hidden]."""


class States:
    """Hidden states of positions from `start` to `stop` (exclusive)."""

    def __init__(self, start: int, states: Bfloat16) -> None:
        self.start, self.stop, self.nbytes = start, start, 0
        self._pieces: deque[Bfloat16] = deque()
        self._empty = states[:0]
        self.append(states)

    def append(self, states: Bfloat16) -> None:
        """Append the states of positions `stop`, `stop` + 1, ..."""
        if len(states):
            self._pieces.append(states)
            self.stop += len(states)
            self.nbytes += states.nbytes

    def read(self, start: int, max_rows: int | None = None) -> Bfloat16:
        """Return the states of at most `max_rows` positions, from position `start` on.

        `start` must be in the range.
        """
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
        """Remove the states of all positions below `position`."""
        while self._pieces and self.start < position:
            piece = self._pieces.popleft()
            gone = min(len(piece), position - self.start)
            self.start += gone
            self.nbytes -= piece[:gone].nbytes
            if gone < len(piece):
                self._pieces.appendleft(piece[gone:])
