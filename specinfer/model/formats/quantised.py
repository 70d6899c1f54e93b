"""A model's matrices quantised while loading.

The quantised model is another model: good for a speculator, whose mistakes cost only time (the paper's
quantised SSM), and a decision of the operator for a target.
"""

from collections.abc import Mapping

import torch

from specinfer.model.formats.base import BlockFormat
from specinfer.model.formats.registry import format_for_rows
from specinfer.model.weights.files import shape_of
from specinfer.model.weights.interfaces import Blocks, BlockWeights, NamedTensors


class QuantisedWeights(NamedTensors):
    """Weights with all matrices, the head too, in blocks of a format or its fallback.

    Embeddings to look up stay as they are.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], chosen: BlockFormat) -> None:
        self._weights = self._names = weights
        self._format = chosen

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return shape_of(self._weights, name)

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return the matrix as the file has it, if it has this format, else quantised; None for numbers."""
        if as_stored:
            return self._weights.blocks(name, True) if isinstance(self._weights, BlockWeights) else None
        shape = self.shape(name)
        chosen = format_for_rows(self._format, shape[1]) if len(shape) == 2 else None
        if chosen is None:
            return None
        if isinstance(self._weights, BlockWeights):
            stored = self._weights.blocks(name)
            if stored is not None and stored[0] == chosen.type_name:
                return stored
        numbers = self._weights[name].float().numpy()
        return chosen.type_name, torch.from_numpy(chosen.quantise(numbers))
