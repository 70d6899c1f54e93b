"""Description of a pass for the device: masks, positions, tiles and buckets."""

import numpy as np
import torch

from specinfer.model.batch import Segment, flatten
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.gpu.description import describe, exact_bucket
from specinfer.model.gpu.graphs import MAX_ROWS, bucket_for, bucket_grid
from tests.unit.model.gpu.passes import NoStorage, ragged_pass


def test_the_example_tree_is_described() -> None:
    """the-(cat-(sat, ran), dog), with `the` as the delta."""
    cache = PagedKVCache(8, NoStorage())
    sequence = cache.open()
    cache.reserve(sequence, 5)
    batch = flatten([Segment(sequence, [50], [51, 52, 53, 54], [-1, 0, 0, -1], want_last=True)])
    bucket = exact_bucket(batch, group=2)
    views = bucket.views(torch.from_numpy(describe(batch, bucket)))
    masks = views["masks"].view(-1, bucket.words)
    assert masks[:, 0].tolist() == [0, 0b0001, 0b0011, 0b0101, 0b1000]
    assert not masks[:, 1:].any()
    assert views["visible"].tolist() == [1] * 5
    assert views["positions"].tolist() == [0, 1, 2, 2, 1]
    assert (views["held"].tolist(), views["context"].tolist()) == ([0], [1])
    assert views["tile_rows"].tolist() == [5]
    assert views["blocks"].tolist() == sequence.blocks


def test_masks_have_a_bit_for_each_of_hundreds_of_nodes() -> None:
    cache = PagedKVCache(32, NoStorage())
    sequence = cache.open()
    cache.reserve(sequence, 301)
    batch = flatten([Segment(sequence, [1], [1] * 300, range(-1, 299), want_last=True)])
    bucket = exact_bucket(batch, group=1)
    words = describe(batch, bucket)[bucket.starts["masks"] :][: 301 * bucket.words].view(np.uint32)
    bits = np.unpackbits(words.view(np.uint8).reshape(301, -1), axis=1, bitorder="little")
    assert bits.sum(1).tolist() == [*range(301)]
    assert bucket.words == 16
    assert bucket_for(batch, 1) is None, "wider than all captured buckets"


def test_every_row_is_in_one_tile_and_tiles_fit_their_bucket() -> None:
    for seed in range(20):
        batch = ragged_pass(seed)
        for group in (1, 3, 8):
            for bucket in filter(None, (exact_bucket(batch, group), bucket_for(batch, group))):
                views = bucket.views(torch.from_numpy(describe(batch, bucket)))
                rows = [
                    row
                    for start, count in zip(
                        views["tile_start"].tolist(), views["tile_rows"].tolist(), strict=True
                    )
                    for row in range(start, start + count)
                ]
                assert rows == [*range(len(batch.token_ids))]
                assert bucket.tile_rows * group <= bucket.tile


def test_passes_are_rounded_up_to_a_bucket_that_was_captured() -> None:
    grid = bucket_grid(2)
    assert len(set(grid)) == len(grid) < 64
    buckets = {bucket_for(ragged_pass(seed), 2) for seed in range(20)}
    assert None not in buckets
    assert buckets <= set(grid)
    assert max(bucket.rows for bucket in grid) == MAX_ROWS
