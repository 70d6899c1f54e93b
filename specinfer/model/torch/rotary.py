"""Computes rotary position embeddings."""

from collections.abc import Sequence

import torch

from specinfer.model.weights.config import ModelConfig

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of rotary angles."""


def rotary_tables(config: ModelConfig) -> Angles:
    """Return the tables of `inv_freq`: cos and sin, [positions, R] float32 each."""
    return _table(config.max_positions, config.inv_freq, config.rotary_scale)


def all_rotary_tables(config: ModelConfig) -> list[Angles]:
    """Return one pair of tables per list of frequencies in `ModelConfig`."""
    local = _table(config.max_positions, config.local_inv_freq, 1.0)
    return [rotary_tables(config), *([local] if config.local_inv_freq else [])]


def _table(count: int, inv_freq: Sequence[float], scale: float) -> Angles:
    angles = torch.outer(torch.arange(count, dtype=torch.float32), torch.tensor(inv_freq))
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R dimensions of x, [T, H, D], in pairs.

    `cos` and `sin` are [T, 1, R].
    """
    turned = x[..., : cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    rest = x[..., cos.shape[-1] :]
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
