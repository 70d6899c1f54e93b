"""Cache entries are moved in one launch: all sources are read before any target is written."""

import pytest
import torch

from specinfer.model.gpu.layer_kernels import MAX_MOVED, move
from tests.unit.model.gpu.passes import DEVICE


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([3, 9, 4], [1, 2, 3]),  # slot 3 is read and written
        ([5, 6], [6, 5]),
        (list(range(1, MAX_MOVED + 20)), list(range(MAX_MOVED + 19))),  # more than one program moves
    ],
)
def test_entries_move_as_if_at_once(source: list[int], target: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    caches = [torch.randn(2, 3, 128, 8, generator=generator).to(DEVICE) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    for cache in expected:
        cache[:, :, target] = cache[:, :, source].clone()
    move(caches[0], caches[1], source, target)
    for actual, wanted in zip(caches, expected, strict=True):
        assert torch.equal(actual, wanted)
