"""Division of a pass into micro-batches, so that a pipeline's stages work at the same time. Pure.

With S stages and m micro-batches of t(T / m) seconds each, a pass takes (m + S - 1) t(T / m), and the stages
are idle for (S - 1) / (m + S - 1) of it (GPipe, arXiv 1811.06965, section 2.3). A pass over few tokens costs
nearly as much as one over one, as it reads the same weights; cutting it would then only add to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specinfer.model.batch import AttentionRows, Batch

_MOST_PER_STAGE = 4
"""Micro-batches per stage: with that many the stages are idle for less than a fifth of a pass."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one stage for T tokens: fixed + each * T."""

    fixed_s: float
    each_s: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> "StageCost":
        """Return the line through two measurements (tokens, seconds)."""
        each = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - each * small[0]), each)

    def seconds(self, tokens: float) -> float:
        """Return the seconds of this many tokens."""
        return self.fixed_s + self.each_s * tokens


def micro_batches(tokens: int, stages: int, cost: StageCost) -> int:
    """Return the number of micro-batches with which a pass over this many tokens takes the least time."""
    most = min(tokens, _MOST_PER_STAGE * stages) if stages > 1 else 1
    return min(range(1, most + 1), key=lambda m: (m + stages - 1) * cost.seconds(tokens / m))


def cut(batch: Batch, parts: int) -> list[Batch]:
    """Return the pass as `parts` passes over successive tokens, as equal as possible.

    Together they do the same.

    A request may be cut: what its later tokens see of the earlier ones is in the cache by then, because every
    stage runs the parts in order.
    """
    count = len(batch.token_ids)
    bounds = [count * part // parts for part in range(parts + 1)]
    return [_between(batch, a, b) for a, b in pairwise(bounds) if a < b]


def _between(batch: Batch, start: int, stop: int) -> Batch:
    """Return the part of the tokens [start, stop)."""
    features = batch.features
    return Batch(
        batch.token_ids[start:stop],
        batch.positions[start:stop],
        batch.write_slots[start:stop],
        [_rows(rows, start, stop) for rows in batch.rows if rows.start < stop and start < rows.stop],
        [row - start for row in batch.logit_rows if start <= row < stop],
        [],
        replace(features, states=features.states[start:stop]) if features else None,
    )


def _rows(rows: AttentionRows, start: int, stop: int) -> AttentionRows:
    first, last = max(rows.start, start), min(rows.stop, stop)
    within = slice(first - rows.start, last - rows.start)
    return replace(
        rows,
        start=first - start,
        stop=last - start,
        visible=rows.visible[within],
        extra=rows.extra[within],
    )


def stage_features(layers: Sequence[int], own: range, is_last: bool) -> list[int]:
    """Return the wanted hidden states (by number of layers) that a stage with these layers has."""
    return [layer for layer in layers if layer in own or (is_last and layer == own.stop)]
