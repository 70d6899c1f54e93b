"""Computes rotary position embeddings."""

import torch

from specinfer.model.weights import rotary as tables
from specinfer.model.weights.config import ModelConfig

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of rotary angles."""


def rotary_tables(config: ModelConfig) -> Angles:
    """Return the tables of `inv_freq`: cos and sin, [positions, R] float32 each."""
    return _doubled(tables.rotary_table(config))


def all_rotary_tables(config: ModelConfig) -> list[Angles]:
    """Return one pair of tables per list of frequencies in `ModelConfig`."""
    return [_doubled(table) for table in tables.all_rotary_tables(config)]


def _doubled(table: tables.Table) -> Angles:
    cos, sin = (torch.from_numpy(part).repeat(1, 2) for part in table)
    return cos, sin


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R dimensions of x, [T, H, D], in pairs.

    `cos` and `sin` are [T, 1, R].
    """
    turned = x[..., : cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    rest = x[..., cos.shape[-1] :]
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
