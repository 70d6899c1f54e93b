"""Flattens appended deltas and scored trees of requests into one pass.

    request A: delta [a b], nodes x-(y z)     request B: delta [c]
    tokens   a b x y z c
    each token sees   a leading stretch of its own request's positions (`visible`),
                      plus the tentative nodes on its own path (`extra`)

It knows no model: executors convert the batch to their inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specinfer.model.cache.sequence import KVSequence


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's part of a pass: context (`delta`), tree nodes, or both.

    `parents` are indices of the sequence's tentative nodes, including nodes of earlier passes; -1 is the last
    context token. `want_last` requests the logits after the last delta token; nodes always have logits.
    """

    sequence: KVSequence
    delta: Sequence[int] = ()
    nodes: Sequence[int] = ()
    parents: Sequence[int] = ()
    want_last: bool = False


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """One request's rows [start, stop) of a pass, and their attention."""

    start: int
    stop: int
    length: int
    """Number of the request's positions: context, then tentative nodes."""
    blocks: Sequence[int]
    """Block table: position p has slot blocks[p // B] * B + p % B."""
    visible: list[int]
    """[rows] each row sees positions 0 to visible - 1."""
    extra: list[list[int]]
    """[rows] positions of further visible nodes: those on the row's own path."""


@dataclass(frozen=True, slots=True)
class PassFeatures:
    """Buffer for hidden states; the executor that runs the pass fills it."""

    layers: tuple[int, ...]
    """Ascending numbers l: the states after l layers. 0: the embeddings."""
    states: NDArray[np.float32]
    """[T, len(layers), hidden]"""


@dataclass(frozen=True, slots=True)
class Batch:
    """One flattened pass."""

    token_ids: list[int]
    positions: list[int]
    """[T] rotary position: index in the context, plus depth for nodes."""
    write_slots: list[int]
    """[T] slot for each token's key and value."""
    rows: list[AttentionRows]
    logit_rows: list[int]
    """[R] rows of the pass with requested logits."""
    logit_spans: list[tuple[int, int]]
    """Each segment's range in `logit_rows`: the last delta token, then nodes."""
    features: "PassFeatures | None" = None
    """Buffer for hidden states; None: none are requested."""


def flatten(segments: Sequence[Segment]) -> Batch:
    """Return one pass over the segments.

    The segments' blocks must be reserved. Their nodes must not be in `KVSequence` yet.
    """
    batch = Batch([], [], [], [], [], [])
    for segment in segments:
        start = len(batch.token_ids)
        batch.token_ids.extend(segment.delta)
        batch.token_ids.extend(segment.nodes)
        part, positions = _attention_rows(segment, start)
        batch.rows.append(part)
        batch.positions.extend(positions)
        cached = segment.sequence.cached + segment.sequence.nodes
        batch.write_slots.extend(segment.sequence.slots(cached, part.length))
        first, wanted = start + len(segment.delta), len(batch.logit_rows)
        batch.logit_rows.extend(range(first - segment.want_last, part.stop))
        batch.logit_spans.append((wanted, len(batch.logit_rows)))
    return batch


def _attention_rows(segment: Segment, start: int) -> tuple[AttentionRows, list[int]]:
    sequence, delta = segment.sequence, len(segment.delta)
    assert not (delta and sequence.nodes), "a delta needs the earlier tree to be committed first"
    cached = sequence.cached
    context = cached + delta
    total = context + sequence.nodes + len(segment.nodes)
    depths, paths = _node_paths(segment)
    visible = [*range(cached + 1, context + 1), *([context] * len(paths))]
    extra: list[list[int]] = [[] for _ in range(delta)]
    extra.extend([context + node for node in path] for path in paths)
    first = cached + sequence.shift
    positions = [*range(first, first + delta), *(first + delta - 1 + depth for depth in depths)]
    stop = start + delta + len(paths)
    return AttentionRows(start, stop, total, sequence.blocks, visible, extra), positions


def _node_paths(segment: Segment) -> tuple[list[int], list[list[int]]]:
    """Return new nodes' depths, and paths as indices of tentative nodes."""
    known = segment.sequence.nodes
    depths: list[int] = []
    paths: list[list[int]] = []
    for offset, parent in enumerate(segment.parents):
        if parent < 0:
            above: list[int] = []
        elif parent < known:
            above = segment.sequence.node_path(parent)
        else:
            above = paths[parent - known]
        paths.append([*above, known + offset])
        depths.append(len(above) + 1)
    return depths, paths
