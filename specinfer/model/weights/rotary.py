"""Computes the tables of rotary position embeddings."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.model.weights.config import ModelConfig

Table = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines and sines of rotary angles, [positions, R/2] each."""


def rotary_table(config: ModelConfig) -> Table:
    """Return the table of `inv_freq`."""
    return _table(config.max_positions, config.inv_freq, config.rotary_scale)


def all_rotary_tables(config: ModelConfig) -> list[Table]:
    """Return one table per list of frequencies in `ModelConfig`."""
    local = _table(config.max_positions, config.local_inv_freq, 1.0)
    return [rotary_table(config), *([local] if config.local_inv_freq else [])]


def _table(count: int, inv_freq: Sequence[float], scale: float) -> Table:
    angles = np.outer(np.arange(count, dtype=np.float32), np.array(inv_freq, np.float32))
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)
