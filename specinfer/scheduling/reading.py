"""Limits the prompt tokens of steps in which requests decode. Pure.

A step takes at most twice as long with them:

    seconds = level * (curve(rows) + (1 + slope * context) * (curve(rows + read) - curve(rows)))

`curve` are the passes measured at start, after short contexts. `level`, the pace of the machine at the time, and
`slope`, the share that a token of context adds to a prompt token's cost, are fitted to the latest steps by least
absolute errors of the logarithms: a few disturbed steps do not count. A change of the level costs nothing; one of
the slope has to pay for more than one step.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree

_SLOWER = 2.0
"""Factor by which the reading of prompts may slow a decoding step."""
_STEPS = 12
"""Number of latest steps from which to learn."""
_KEPT = 0.8
"""Weight of a step, relative to the next one."""
_RELUCTANCE = 1.6
"""Weight of the known slope, relative to the latest step."""


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
        self._slope = 0.0
        self._steps: deque[tuple[float, float]] = deque(maxlen=_STEPS)
        """Weighted context, and logarithm of the seconds over the curve's.

        The context is weighted by the share of the prompt tokens in the cost.
        """

    def max_tokens(self, rows: int, context: float) -> int | None:
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
        short = float(self._seconds[size.rows + size.read])
        added = short - float(self._seconds[size.rows])
        self._steps.append((size.context * added / short, math.log(pass_s / short)))
        if any(weighted for weighted, _ in self._steps):
            self._slope = self._best_slope()

    def _best_slope(self) -> float:
        """Return the slope with the least cost.

        Tried are the known one, 0, and those through the last step and another.
        """
        contexts, measured = np.array(self._steps).T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.exp(measured[-1] - measured[:-1])
            through = (ratio - 1) / (contexts[-1] - ratio * contexts[:-1])
        slopes = np.array([self._slope, 0.0, *through[np.isfinite(through) & (through > 0)]])
        levels = measured - np.log1p(np.outer(slopes, contexts))
        weights = _KEPT ** np.arange(len(contexts), dtype=np.float64)[::-1]
        errors = np.abs(levels - _weighted_medians(levels, weights)) @ weights
        change = np.log1p(slopes * contexts.max()) - math.log1p(self._slope * contexts.max())
        return float(slopes[np.argmin(errors + _RELUCTANCE * np.abs(change))])


def _weighted_medians(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [rows, 1] medians of rows, by weights of columns."""
    order = np.argsort(rows, axis=1)
    below = np.cumsum(weights[order], axis=1)
    middle = np.argmax(below >= weights.sum() / 2, axis=1)[:, None]
    return np.take_along_axis(rows, np.take_along_axis(order, middle, axis=1), axis=1)


def pass_size(
    entries: Sequence[StepEntry], trees: Mapping[str, TokenTree], verdicts: Mapping[str, VerdictEntry]
) -> PassSize:
    """Return the size of a pass without failed or cached entries.

    With any, there are no tokens. The seconds may include reading cached tokens from files.
    """
    rows = read = 0
    context = 0.0
    for entry in entries:
        verdict, tree = verdicts.get(entry.request_id), trees.get(entry.request_id)
        if verdict is None or verdict.status is not EntryStatus.OK or verdict.cached_tokens:
            return PassSize()
        nodes = len(tree) - 1 if tree is not None else 0
        if entry.final and len(entry.delta) == 1:
            rows += 1 + nodes
            continue
        tokens = verdict.cached_len - len(verdict.accepted) - entry.base_len
        rows, read, context = rows + nodes, read + tokens, context + tokens * (entry.base_len + tokens / 2)
    return PassSize(rows, read, context / read if read else 0.0)
