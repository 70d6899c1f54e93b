"""Which sizes of passes are captured: powers of two in requests and in rows."""

from collections.abc import Sequence

from specinfer.model.batch import Batch
from specinfer.model.device.description import (
    LEAST_WORDS,
    Bucket,
    contexts,
    power_above,
    tile_size,
    tree_words,
)

MOST_ROWS, MOST_REQUESTS = 256, 64
"""Of captured passes. Larger ones read prompts, which takes long enough to hide the launches of kernels."""


def bucket_of(requests: int, rows: int, group: int) -> Bucket:
    """The bucket of captured passes of so many requests and rows."""
    return Bucket(requests, rows, rows, LEAST_WORDS, tile_size(rows, requests, group), group)


def bucket_grid(group: int) -> list[Bucket]:
    """All of them, those of most rows first."""
    powers = [1 << i for i in range(MOST_ROWS.bit_length())]
    return [
        bucket_of(requests, rows, group)
        for rows in reversed(powers)
        for requests in powers
        if requests <= min(rows, MOST_REQUESTS)
    ]


def bucket_for(batch: Batch, group: int) -> Bucket | None:
    """The least bucket that holds a pass; None if the pass is too large to be captured."""
    requests, rows = power_above(len(batch.rows)), power_above(len(batch.token_ids))
    wide = tree_words(batch.rows, contexts(batch)) > LEAST_WORDS
    if rows > MOST_ROWS or requests > MOST_REQUESTS or wide:
        return None
    return bucket_of(requests, rows, group)


def largest(grid: Sequence[Bucket]) -> Bucket:
    """The bucket with most numbers before the blocks."""
    return max(grid, key=lambda bucket: bucket.starts["blocks"])
