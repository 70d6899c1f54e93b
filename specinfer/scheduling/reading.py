"""Limits the prompt tokens of steps in which requests decode. Pure.

A step takes at most twice as long with them:

    seconds = level * (curve(rows) + (1 + slope * context) * (curve(rows + read) - curve(rows)))

`curve` are the passes measured at start, after short contexts. Two numbers are learned from steps: `level`, the ratio
of steps without prompts to the curve, and `slope`, the share that a token of context adds to a prompt token's cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree

_SLOWER = 2.0
"""Factor by which the reading of prompts may slow a decoding step."""
_WEIGHT = 0.25
"""Weight of a new measurement in the averages."""
_MAX_DISTURBANCE = 4.0
"""Maximum factor between a measured pass and the curve."""
_MIN_CONTEXT = 256
"""Minimum context from which to learn its cost."""


@dataclass(frozen=True, slots=True)
class PassSize:
    rows: int = 0
    """Tokens and tree nodes of decoding requests, and nodes after prompts."""
    read: int = 0
    """Prompt tokens that were computed."""
    context: float = 0.0
    """Mean number of tokens before a prompt token."""


class ReadingPace:
    """The prompt tokens that a step may read in addition."""

    def __init__(self, pass_seconds: Sequence[float] = ()) -> None:
        """Take the rising seconds of passes by their tokens.

        Without any there is no limit.
        """
        self._seconds = np.array([0.0, *pass_seconds])
        self._level, self._slope = 1.0, 0.0
        self._steps = 0
        """Steps without prompts from which the level was learned."""

    def max_tokens(self, rows: int, context: int) -> int | None:
        """Return the maximum prompt tokens after `context` tokens, if limited.

        They are at least one, and double the seconds of a step at most.
        """
        if not rows or len(self._seconds) == 1:
            return None
        rows = min(rows, len(self._seconds) - 1)
        short = self._seconds[rows] * (1 + (_SLOWER - 1) / (1 + self._slope * context))
        return max(1, int(np.searchsorted(self._seconds, short, side="right")) - 1 - rows)

    def learn(self, size: PassSize, pass_s: float) -> None:
        if not 0 < size.rows + size.read < len(self._seconds):
            return
        base = float(self._seconds[size.rows])
        if not size.read:
            ratio = min(max(pass_s / base, 1 / _MAX_DISTURBANCE), _MAX_DISTURBANCE)
            self._steps += 1
            self._level += max(_WEIGHT, 1 / self._steps) * (ratio - self._level)
            return
        added = float(self._seconds[size.rows + size.read]) - base
        if size.context < _MIN_CONTEXT or added <= 0:
            return
        longer = min(
            (pass_s / self._level - base) / added, _MAX_DISTURBANCE * (1 + self._slope * size.context)
        )
        self._slope += _WEIGHT * (max(0.0, (longer - 1) / size.context) - self._slope)


def pass_size(
    entries: Sequence[StepEntry], trees: Mapping[str, TokenTree], verdicts: Mapping[str, VerdictEntry]
) -> PassSize:
    """Return the size of a pass; no tokens if an entry failed."""
    rows = read = 0
    context = 0.0
    for entry in entries:
        verdict, tree = verdicts.get(entry.request_id), trees.get(entry.request_id)
        if verdict is None or verdict.status is not EntryStatus.OK:
            return PassSize()
        nodes = len(tree) - 1 if tree is not None else 0
        if entry.final and len(entry.delta) == 1:
            rows += 1 + nodes
            continue
        start = entry.base_len + verdict.cached_tokens
        tokens = verdict.cached_len - len(verdict.accepted) - start
        rows, read, context = rows + nodes, read + tokens, context + tokens * (start + tokens / 2)
    return PassSize(rows, read, context / read if read else 0.0)
