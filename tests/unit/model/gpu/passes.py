"""Random ragged passes, and the exact result of attention over them."""

from collections.abc import Sequence

import numpy as np
import torch

from specinfer.model.batch import Batch, Segment, flatten
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots
from specinfer.model.gpu.attention import AttentionPlan
from specinfer.model.gpu.description import Bucket, describe
from specinfer.model.gpu.launch import interpreted

DEVICE = "cpu" if interpreted() else "cuda"
BLOCKS = 64
SLOTS = BLOCKS * BLOCK_TOKENS


class NoStorage:
    """Storage of a cache that has block tables only."""

    def move(self, source: Slots, target: Slots) -> None: ...

    def rotate(self, slots: Slots, delta: int) -> None: ...


def random_parents(rng: np.random.Generator, known: int, count: int) -> list[int]:
    return [int(rng.integers(-1, known + node)) for node in range(count)]


def random_segment(rng: np.random.Generator, cache: PagedKVCache, sequence: KVSequence, kind: int) -> Segment:
    """Return a delta with a tree, a delta alone, or a tree below nodes of an earlier pass (kinds 0, 1, 2)."""
    known, delta = (int(rng.integers(1, 9)), 0) if kind == 2 else (0, int(rng.integers(1, 20)))
    cache.reserve(sequence, known)
    cache.add_nodes(sequence, [1] * known, random_parents(rng, 0, known))
    nodes = 0 if kind == 1 else int(rng.integers(1, 40))
    parents = random_parents(rng, known, nodes)
    cache.reserve(sequence, delta + nodes)
    return Segment(sequence, [1] * delta, [1] * nodes, parents, want_last=delta > 0)


def ragged_pass(seed: int, kinds: Sequence[int] = (0, 1, 2), longest: int = 150) -> Batch:
    """Return a pass with a request of each kind after a random context; blocks of requests alternate."""
    rng = np.random.default_rng(seed)
    cache = PagedKVCache(BLOCKS, NoStorage())
    sequences = [cache.open() for _ in kinds]
    for sequence, length in zip(sequences, rng.integers(1, longest, len(kinds)).tolist(), strict=True):
        cache.reserve(sequence, length // 2)
        cache.append(sequence, [1] * (length // 2))
    for sequence in reversed(sequences):
        more = int(rng.integers(1, longest // 2))
        cache.reserve(sequence, more)
        cache.append(sequence, [1] * more)
    return flatten(
        [random_segment(rng, cache, sequence, kind) for sequence, kind in zip(sequences, kinds, strict=True)]
    )


def planned(batch: Batch, bucket: Bucket, splits: int, query: torch.Tensor) -> AttentionPlan:
    """Return the description of the pass on the device."""
    numbers = torch.from_numpy(describe(batch, bucket)).to(DEVICE)
    return AttentionPlan.of(bucket, bucket.views(numbers), splits, *query.shape[1:])


def exact_attention(
    batch: Batch,
    new: Sequence[torch.Tensor],
    cache: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Compute attention [T, H, D] in float64, row by row, position by position.

    Args:
        new: query [T, H, D], key and value [T, KV heads, D].
        cache: keys and values [KV heads, slots, D] before the pass.
    """
    query, key, value = (tensor.double().cpu() for tensor in new)
    keys, values = (tensor.double().cpu().clone() for tensor in cache)
    keys[:, batch.write_slots], values[:, batch.write_slots] = key.transpose(0, 1), value.transpose(0, 1)
    group, out = query.shape[1] // key.shape[1], torch.empty_like(query)
    for part in batch.rows:
        for row, visible, extra in zip(range(part.start, part.stop), part.visible, part.extra, strict=True):
            places = [*range(visible), *extra]
            slots = [part.blocks[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in places]
            k, v = (memory[:, slots].repeat_interleave(group, 0) for memory in (keys, values))
            shares = (torch.einsum("hd,hnd->hn", query[row], k) / query.shape[-1] ** 0.5).softmax(-1)
            out[row] = torch.einsum("hn,hnd->hd", shares, v)
    return out
