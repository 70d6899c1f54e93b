"""Reads the hidden states (features) that a verdict returns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specinfer.model.cache.feature_store import FeatureStore
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence

MESSAGE_BYTES = 2**23
"""Maximum bytes of features per message: half of gRPC's 16 MiB limit."""


@dataclass(frozen=True, slots=True)
class FeatureSpan:
    """Hidden states of consecutive context tokens."""

    start: int
    """Context position of the first token."""
    data: bytes
    """[positions, layers, hidden] bfloat16."""
    hidden: int = 0
    """Size of a hidden state."""


NO_FEATURES = FeatureSpan(0, b"")


def features_of(
    store: FeatureStore,
    cache: PagedKVCache,
    sequence: KVSequence,
    accepted: Sequence[int],
    since: int,
    max_bytes: int,
) -> FeatureSpan:
    """Return stored hidden states of context and accepted nodes.

    Args:
        accepted: accepted nodes, which become context, in order.
        since: context position of the first wanted state; the span starts later if states are missing.
        max_bytes: maximum size of the span.
    """
    first = max(since, _first_position(cache, sequence))
    slots = sequence.slots(first - sequence.evicted, sequence.cached) if first < sequence.length else []
    nodes = sequence.slots(sequence.cached, sequence.cached + sequence.nodes)
    slots += [nodes[node] for node in accepted[max(0, first - sequence.length) :]]
    unknown, states = store.read(slots, max(1, max_bytes // store.token_bytes))
    return FeatureSpan(first + unknown, states.tobytes(), states.shape[-1])


def with_layers(span: FeatureSpan, kept: Sequence[int], wanted: Sequence[int]) -> FeatureSpan:
    """Return the layers `wanted` of a span with the layers `kept`."""
    if not span.data or tuple(kept) == tuple(wanted):
        return span
    states = np.frombuffer(span.data, np.int16).reshape(-1, len(kept), span.hidden)
    rows = states[:, [kept.index(layer) for layer in wanted]]
    return replace(span, data=np.ascontiguousarray(rows).tobytes())


def _first_position(cache: PagedKVCache, sequence: KVSequence) -> int:
    """Return the position after a window's dropped positions; 0: none."""
    if cache.window is None or not sequence.evicted:
        return 0
    return sequence.evicted + cache.window.sink_blocks * cache.block_tokens
