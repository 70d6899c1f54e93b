"""Flattens "append a delta, score a tree" of several requests into one pass of T tokens.

    request A: delta [a b], nodes x-(y z)     request B: delta [c]
    tokens   a b x y z c
    each token sees   a leading stretch of its own request's positions (`visible`),
                      plus the tentative nodes on its own path (`extra`)

Nothing here touches the model; the attention backend turns `AttentionBatch` into what it needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specinfer.model.kv_cache import KVSequence, Slots

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's part of a pass.

    Either context (`delta`) or tree nodes or both. `parents` index the sequence's tentative nodes,
    counting those scored in earlier passes; -1 is the last context token. `want_last` asks for the
    logits after the last delta token; nodes always get theirs.
    """

    sequence: KVSequence
    delta: Sequence[int] = ()
    nodes: Sequence[int] = ()
    parents: Sequence[int] = ()
    want_last: bool = False


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The queries of one request: rows [start, stop) of the pass, over its blocks of the cache."""

    start: int
    stop: int
    length: int
    """The request's positions: context, then tentative nodes."""
    blocks: Ints
    """Block table: position p lies in slot blocks[p // B] * B + p % B."""
    visible: Ints
    """[rows] number of leading positions each query sees."""
    extra: list[list[int]]
    """[rows] further positions each query sees: the tentative nodes on its path, itself included."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One flattened pass."""

    token_ids: Ints
    """[T]"""
    positions: Ints
    """[T] rotary position: place in the context, or that of its last token + depth for a node."""
    write_slots: Slots
    """[T] where each token's key and value go."""
    rows: list[AttentionRows]
    logit_rows: Ints
    """[R] rows of the pass whose logits are wanted."""
    logit_spans: list[tuple[int, int]]
    """Per segment, its range within `logit_rows`: the last delta token first if wanted, then nodes."""


def flatten(segments: Sequence[Segment]) -> Batch:
    """Builds the pass. The segments' cache blocks must be reserved and nodes not yet added."""
    tokens: list[int] = []
    positions: list[Ints] = []
    writes: list[Slots] = []
    rows: list[AttentionRows] = []
    logit_rows: list[int] = []
    spans: list[tuple[int, int]] = []
    for segment in segments:
        start = len(tokens)
        tokens.extend(segment.delta)
        tokens.extend(segment.nodes)
        part, part_positions = _attention_rows(segment, start)
        rows.append(part)
        positions.append(part_positions)
        held = segment.sequence.cached + segment.sequence.nodes
        writes.append(segment.sequence.slots(held, part.length))
        first = start + len(segment.delta)
        wanted = [first - 1] if segment.want_last else []
        wanted.extend(range(first, len(tokens)))
        spans.append((len(logit_rows), len(logit_rows) + len(wanted)))
        logit_rows.extend(wanted)
    return Batch(
        np.array(tokens, np.int64),
        np.concatenate(positions),
        np.concatenate(writes),
        rows,
        np.array(logit_rows, np.int64),
        spans,
    )


def _attention_rows(segment: Segment, start: int) -> tuple[AttentionRows, Ints]:
    sequence, delta = segment.sequence, len(segment.delta)
    assert not (delta and sequence.nodes), "a delta needs the earlier tree to be committed first"
    held = sequence.cached
    context = held + delta
    total = context + sequence.nodes + len(segment.nodes)
    depths, paths = _node_paths(segment)
    visible = np.concatenate([np.arange(held + 1, context + 1), np.full(len(paths), context)]).astype(
        np.int64
    )
    extra: list[list[int]] = [[] for _ in range(delta)]
    extra.extend([context + node for node in path] for path in paths)
    positions = np.concatenate([np.arange(held, context), context - 1 + np.array(depths, np.int64)]).astype(
        np.int64
    )
    positions += sequence.shift
    stop = start + delta + len(paths)
    blocks = np.array(sequence.blocks, np.int64)
    return AttentionRows(start, stop, total, blocks, visible, extra), positions


def _node_paths(segment: Segment) -> tuple[list[int], list[list[int]]]:
    """Depth of each new node and its path of tentative nodes, itself last."""
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
