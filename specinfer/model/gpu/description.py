"""Describes a pass in one int32 array, which is copied once.

    token_ids positions write_slots visible            one number per row of the pass
    masks                                              `words` numbers per row, see below
    `held` context row_start block_start               one number per request (`held`: positions in the cache)
    tile_request tile_start tile_rows                  one number per tile: rows of one request
    logit_rows                                         one number per row with requested logits
    blocks                                             the block tables, concatenated

A row sees position p of its request if  p < visible, or if p >= context and bit p - context of its mask is set: the
topology-aware causal mask, in which every node sees its ancestors and itself.

    the-+-cat-+-sat       tentative nodes  cat sat ran dog       masks  cat 0001   ran 0101
        |     +-ran       bits               0   1   2   3              sat 0011   dog 1000
        +-dog

Sections have a bucket's sizes, not the pass's: passes of one bucket only differ in numbers, so that one captured graph
runs them all. Excess rows, tiles and logits do nothing. Pure: nothing here runs on a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import AttentionRows, Batch

Int32 = NDArray[np.int32]
WORD_BITS = 32
MIN_WORDS = 8
"""Minimum words of a mask: enough for 256 tree nodes."""
MAX_TILE = 128
"""Maximum size of a tile: rows times query heads per key head."""
MIN_TILE = 16
"""Minimum size of a tile: Triton's minimum rows of a matrix product."""
_ALIGNED = 4
"""Alignment of sections: 4 int32 numbers, 16 bytes."""
_ROWS = ("token_ids", "positions", "write_slots", "visible")
_REQUESTS = ("held", "context", "row_start", "block_start")
_TILES = ("tile_request", "tile_start", "tile_rows")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes of a description's sections; captured graphs exist per bucket."""

    requests: int
    rows: int
    logits: int
    words: int
    tile: int
    """Size of a tile: rows times `group`, a power of two."""
    group: int
    """Number of query heads per key head."""

    @property
    def tile_rows(self) -> int:
        return self.tile // self.group

    @property
    def tiles(self) -> int:
        """Maximum number of tiles, as each request may have an incomplete tile."""
        return self.requests + max(self.rows - self.requests, 0) // self.tile_rows

    @property
    def usual_tiles(self) -> int:
        """Number of tiles if all requests have equally many rows."""
        return self.requests * -(-self.rows // (max(self.requests, 1) * self.tile_rows))

    @property
    def sections(self) -> dict[str, int]:
        """Length of each section, in order; the block tables follow."""
        return {
            **dict.fromkeys(_ROWS, self.rows),
            "masks": self.rows * self.words,
            **dict.fromkeys(_REQUESTS, self.requests),
            **dict.fromkeys(_TILES, self.tiles),
            "logit_rows": self.logits,
        }

    @property
    def starts(self) -> dict[str, int]:
        """Index of each section in the description, aligned for vector loads."""
        starts, at = {}, 0
        for name, size in self.sections.items():
            starts[name], at = at, at + -(-size // _ALIGNED) * _ALIGNED
        return starts | {"blocks": at}

    def views(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        starts = self.starts
        views = {name: numbers[starts[name] : starts[name] + size] for name, size in self.sections.items()}
        return views | {"blocks": numbers[starts["blocks"] :]}


def power_above(number: int) -> int:
    """Return the smallest power of two >= number."""
    return 1 << max(number - 1, 0).bit_length()


def tree_words(rows: Sequence[AttentionRows], context: Sequence[int]) -> int:
    """Return the words per mask for the request with most tentative nodes."""
    nodes = max((part.length - base for part, base in zip(rows, context, strict=True)), default=0)
    return max(MIN_WORDS, power_above(-(-nodes // WORD_BITS)))


def contexts(batch: Batch) -> list[int]:
    """Return each request's number of positions before its tentative nodes."""
    return [part.visible[-1] if part.extra and part.extra[-1] else part.length for part in batch.rows]


def tile_size(rows: int, requests: int, group: int) -> int:
    """Return the tile size for requests of average length."""
    average = -(-rows // max(requests, 1)) * group
    return max(MIN_TILE, power_above(group), min(MAX_TILE, power_above(average)))


def exact_bucket(batch: Batch, group: int) -> Bucket:
    """Return the bucket for exactly one pass, without rounding up."""
    rows, requests = len(batch.token_ids), len(batch.rows)
    words = tree_words(batch.rows, contexts(batch))
    return Bucket(requests, rows, len(batch.logit_rows), words, tile_size(rows, requests, group), group)


def describe(batch: Batch, bucket: Bucket) -> Int32:
    """Return the description of a pass in a bucket's layout."""
    parts, context = batch.rows, contexts(batch)
    visible = [v for part in parts for v in part.visible]
    tiles = _tiles(parts, bucket.tile_rows)
    sections: dict[str, Sequence[int] | Int32] = {
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "write_slots": batch.write_slots,
        "visible": visible,
        "masks": _masks(parts, context, bucket.words),
        "held": [part.length - (part.stop - part.start) for part in parts],
        "context": context,
        "row_start": [part.start for part in parts],
        "block_start": [*accumulate((len(part.blocks) for part in parts[:-1]), initial=0)],
        "tile_request": [request for request, _, _ in tiles],
        "tile_start": [start for _, start, _ in tiles],
        "tile_rows": [rows for _, _, rows in tiles],
        "logit_rows": batch.logit_rows,
    }
    blocks = [*chain.from_iterable(part.blocks for part in parts)]
    starts = bucket.starts
    numbers = np.zeros(starts["blocks"] + len(blocks), np.int32)
    for name, values in sections.items():
        numbers[starts[name] : starts[name] + len(values)] = values
    numbers[starts["blocks"] :] = blocks
    return numbers


def _tiles(parts: Sequence[AttentionRows], max_rows: int) -> list[tuple[int, int, int]]:
    """Return (request, first row, number of rows) of every tile."""
    return [
        (request, start, min(max_rows, part.stop - start))
        for request, part in enumerate(parts)
        for start in range(part.start, part.stop, max_rows)
    ]


def _masks(parts: Sequence[AttentionRows], context: Sequence[int], words: int) -> Int32:
    places = [
        (part.start + row, position - base)
        for part, base in zip(parts, context, strict=True)
        for row, extra in enumerate(part.extra)
        for position in extra
    ]
    masks = np.zeros((parts[-1].stop if parts else 0, words), np.uint32)
    if places:
        rows, bits = np.array(places, np.int64).T
        np.bitwise_or.at(
            masks, (rows, bits // WORD_BITS), np.uint32(1) << (bits % WORD_BITS).astype(np.uint32)
        )
    return masks.reshape(-1).view(np.int32)
