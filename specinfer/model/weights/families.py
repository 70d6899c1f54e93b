"""Renames weights to Llama's names, which our decoder reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specinfer.errors import IncompatibleError
from specinfer.model.families import base, family_of
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.interfaces import Blocks, BlockWeights, NamedTensors, StackedBlocks
from specinfer.model.weights.packed import open_checkpoint

EMBEDDING, POSITIONS = "model.embed_tokens.weight", base.POSITIONS


class RenamedWeights(NamedTensors):
    """Weights under Llama's names; some are parts of a checkpoint's tensors."""

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        sources: Mapping[str, base.TensorSource],
        experts: int = 0,
    ) -> None:
        self._weights, self._experts = weights, experts
        self._sources = self._names = sources

    def __getitem__(self, name: str) -> torch.Tensor:
        source, pick, index = self._sources[name]
        if index is None:
            tensor = self._weights[source]
        else:
            tensor = read_part(self._weights, source, TensorSlice(0, index, index + 1))[0]
        return pick(tensor) if pick else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        source, pick, index = self._sources[name]
        shape = shape_of(self._weights, source)
        if index is not None:
            shape = self._shape_in_stack(source, shape)
        try:
            return tuple(pick(torch.empty(shape, device="meta")).shape) if pick else shape
        except (RuntimeError, IndexError) as error:
            raise IncompatibleError(
                f"{source} has shape {list(shape)}: its model_type requires another shape ({error})"
            ) from error

    def _shape_in_stack(self, source: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2 or shape[0] != self._experts:
            raise IncompatibleError(
                f"{source} has shape {list(shape)}: must have a part for each of {self._experts} experts"
            )
        return shape[1:]

    def origin(self, name: str) -> str:
        """Return the name of the checkpoint's tensor from which ours is read."""
        return self._sources[name].name

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        source, pick, index = self._sources[name]
        if pick is None and index is None:
            return read_part(self._weights, source, span)
        return self[name].narrow(span.dim, span.start, span.stop - span.start).clone()

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in its stored format; None: not in blocks.

        If our matrix is a part of the checkpoint's, it consists of whole rows.
        """
        source, pick, index = self._sources[name]
        if index is not None:
            blocks = (
                self._weights.stacked(source, index) if isinstance(self._weights, StackedBlocks) else None
            )
        else:
            blocks = (
                self._weights.blocks(source, as_stored) if isinstance(self._weights, BlockWeights) else None
            )
        if blocks is None or pick is None:
            return blocks
        kind, rows = blocks
        return kind, pick(rows)


def open_weights(directory: Path, config: ModelConfig, blocks: bool = False) -> Mapping[str, torch.Tensor]:
    """Return a directory's tensors under Llama's names; for `blocks` see `open_checkpoint`."""
    return in_llama_names(config, open_checkpoint(directory, blocks=blocks))


def original_name(weights: Mapping[str, torch.Tensor], name: str) -> str:
    """Return the checkpoint's name of a tensor, also if not renamed."""
    return weights.origin(name) if isinstance(weights, RenamedWeights) else name


def in_llama_names(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the weights under Llama's names; weights that have them are unchanged."""
    if family_of(config.family).rename is None or isinstance(weights, RenamedWeights):
        return weights
    sources = sources_of(config, {name: name for name in weights})
    return RenamedWeights(weights, sources, config.experts.count if config.experts else 0)


def sources_of(config: ModelConfig, names: Mapping[str, str]) -> dict[str, base.TensorSource]:
    """Return the source in the checkpoint for each of our tensors.

    `names` maps names in the checkpoint to names in the family's `transformers` model.
    """
    rename = family_of(config.family).rename
    experts = config.experts.count if config.experts else 0
    heads = base.HeadSizes(config.heads, config.kv_heads, config.head_dim, experts, config.recurrent_shape)
    sources: dict[str, base.TensorSource] = {}
    for stored, name in names.items():
        of_name = rename(heads, name) if rename else {name: base.TensorSource(name)}
        sources |= {ours: source._replace(name=stored) for ours, source in of_name.items()}
    return sources
