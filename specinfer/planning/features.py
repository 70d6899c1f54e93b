"""What the learned policy knows of a request before a step. Pure.

Trees are chosen before they are drafted: all of it hangs on committed tokens and on steps that are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specinfer.planning.repeats import MOST

Floats = NDArray[np.float64]

_MATCHES = (2, 3, 4, 6, MOST)
_LENGTHS = np.array(_MATCHES)
NAMES = ("one", "usual", "recent", "last", *(f"match {length}" for length in _MATCHES))
"""For a request and a speculator set S:

one      1
usual    what the measured policy expects: accepted tokens per doubling, of the request's last 40 trees, times
         share(S)
recent   accepted tokens per doubling in its last four steps with trees
last     the same of the latest
match k  whether the last k tokens of the text stand in it before (`repeats`)

The first two of these know all steps but the latest, which is learnt from beside the next one; `recent` and
`last` know it, too, because they only need to see how much a text has grown.
"""
_FADE = 0.75
"""By which a step counts less in `recent` with each one after it."""


@dataclass(slots=True)
class Text:
    """One request's text so far."""

    context: int
    """Its tokens when it was last looked at."""
    accepted: float
    """Tokens of recent steps, older ones counting less."""
    doublings: float = 1.0
    """Of the trees of these steps, likewise."""
    last: float = 0.0
    planned: float = 0.0
    """Doublings of the tree that was planned since; 0 for plain decoding."""

    @classmethod
    def new(cls, context: int, usual: float) -> "Text":
        """One of which nothing is known but what is usual, in accepted tokens per doubling."""
        return cls(context, usual, last=usual)

    def grow(self, context: int) -> None:
        """It has so many tokens now."""
        came = context - self.context
        if came > 0 and self.planned > 0:
            self.accepted = _FADE * self.accepted + came - 1
            self.doublings = _FADE * self.doublings + self.planned
            self.last = (came - 1) / self.planned
        self.context, self.planned = context, 0.0

    @property
    def recent(self) -> float:
        """Accepted tokens per doubling."""
        return self.accepted / self.doublings


def features_of(texts: Sequence[Text], matches: Sequence[int], usual: Floats) -> Floats:
    """[requests, sets, features], of [requests, sets] what is usual."""
    found = np.empty((*usual.shape, len(NAMES)))
    found[..., 0], found[..., 1] = 1.0, usual
    found[..., 2:4] = np.array([(text.recent, text.last) for text in texts])[:, None]
    found[..., 4:] = (np.array(matches)[:, None] >= _LENGTHS)[:, None]
    return found
