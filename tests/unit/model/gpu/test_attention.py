"""Fused tree attention, interpreted if there is no GPU, against float64, position by position."""

from dataclasses import replace

import pytest
import torch

from specinfer.model.batch import Batch
from specinfer.model.gpu.attention import splits_for, tree_attention
from specinfer.model.gpu.description import Bucket, exact_bucket
from tests.unit.model.gpu.passes import DEVICE, SLOTS, exact_attention, planned, ragged_pass

TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3}


def numbers(
    batch: Batch, heads: int, kv_heads: int, width: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return random query, key and value of a pass in one buffer, like projections, and keys and values of a cache."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(batch.token_ids), heads + 2 * kv_heads, width)
    projected = torch.randn(shape, generator=generator).to(DEVICE, dtype)
    cache = [torch.randn((kv_heads, SLOTS, width), generator=generator).to(DEVICE, dtype) for _ in range(2)]
    return list(projected.split([heads, kv_heads, kv_heads], 1)), cache


def attended(
    batch: Batch,
    bucket: Bucket,
    new: list[torch.Tensor],
    cache: list[torch.Tensor],
    splits: int = 1,
) -> torch.Tensor:
    """Run the kernel; elements of the result that it does not write are NaN."""
    out = torch.full((bucket.rows, *new[0].shape[1:]), torch.nan, dtype=new[0].dtype, device=DEVICE)
    return tree_attention(*new, (cache[0], cache[1]), planned(batch, bucket, splits, new[0]), out)


def assert_exact(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert not actual.isnan().any(), "not every element was written"
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "splits", "dtype"),
    [
        (4, 2, 16, 1, torch.float32),
        (3, 1, 8, 4, torch.float32),  # three heads of a group do not fill a tile; eight dimensions are padded
        (2, 2, 24, 2, torch.float16),
    ],
)
def test_ragged_random_trees_equal_float64(
    heads: int, kv_heads: int, width: int, splits: int, dtype: torch.dtype
) -> None:
    batch = ragged_pass(splits)
    new, cache = numbers(batch, heads, kv_heads, width, dtype)
    expected = exact_attention(batch, new, cache)
    before = [memory.clone() for memory in cache]
    actual = attended(batch, exact_bucket(batch, heads // kv_heads), new, cache, splits)
    assert_exact(actual, expected, dtype)
    for memory, old, added in zip(cache, before, new[1:], strict=True):
        old[:, batch.write_slots] = added.transpose(0, 1)
        assert torch.equal(memory, old), "the pass's own entries are written, and nothing else"


def test_a_larger_bucket_changes_nothing() -> None:
    """Rows of a bucket beyond those of the pass are neither read nor written."""
    batch = ragged_pass(5, longest=60)
    new, cache = numbers(batch, 2, 1, 16, torch.float32)
    expected = exact_attention(batch, new, cache)
    rows = len(batch.token_ids)
    bucket = replace(exact_bucket(batch, 2), requests=8, rows=rows + 9, logits=rows + 9, words=16)
    padded = [torch.cat([tensor, torch.full_like(tensor[:9], torch.nan)]) for tensor in new]
    actual = attended(batch, bucket, padded, cache, 2)
    assert_exact(actual[:rows], expected, torch.float32)
    assert not any(memory.isnan().any() for memory in cache)


def test_positions_are_split_to_fill_the_chip() -> None:
    one = Bucket(requests=1, rows=16, logits=16, words=8, tile=64, group=4)
    assert splits_for(one, kv_heads=8, positions=32768, processors=132) == 32
    assert splits_for(one, kv_heads=8, positions=4096, processors=132) == 16
    assert splits_for(one, kv_heads=8, positions=300, processors=132) == 1
    many = replace(one, requests=32, rows=512, logits=512)
    assert splits_for(many, kv_heads=8, positions=32768, processors=132) == 1
