"""Rotary position embeddings."""

import torch

from specinfer.model.weights.config import ModelConfig


def rotary_tables(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, each [positions, R] in float32."""
    positions = torch.arange(config.max_positions, dtype=torch.float32)
    angles = torch.outer(positions, torch.tensor(config.inv_freq))
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * config.rotary_scale, angles.sin() * config.rotary_scale


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R dimensions of x [T, H, D] by the angles of its tokens' positions, [T, 1, R]."""
    turned = x[..., : cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    rest = x[..., cos.shape[-1] :]
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
