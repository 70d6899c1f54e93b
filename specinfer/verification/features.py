"""Reads the hidden states (features) that a verdict returns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specinfer.model.cache.feature_store import FeatureStore
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence

MESSAGE_BYTES = 2**23
"""Maximum bytes of features per message: half of gRPC's 16 MiB limit."""


class FeatureSpan(NamedTuple):
    """Hidden states of consecutive context tokens."""

    start: int
    """Context position of the first token."""
    data: bytes
    """[positions, layers, hidden] bfloat16."""


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
    return FeatureSpan(first + unknown, states.tobytes())


def with_layers(data: bytes, kept: Sequence[int], wanted: Sequence[int], hidden: int) -> bytes:
    """Return the layers `wanted` of data with the layers `kept`.

    Args:
        data: [positions, layers, hidden] bfloat16.
        hidden: size of a hidden state.
    """
    if not data or tuple(kept) == tuple(wanted):
        return data
    states = np.frombuffer(data, np.int16).reshape(-1, len(kept), hidden)
    return np.ascontiguousarray(states[:, [kept.index(layer) for layer in wanted]]).tobytes()


def _first_position(cache: PagedKVCache, sequence: KVSequence) -> int:
    """Return the position after a window's dropped positions; 0: none."""
    if cache.window is None or not sequence.evicted:
        return 0
    return sequence.evicted + cache.window.sink_blocks * cache.block_tokens
