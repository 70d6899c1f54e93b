"""Reads weights in the format that an executor needs, and counts types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specinfer.model.arrays import as_floats, like
from specinfer.model.families.experts import ROUTER, SHARED_GATE
from specinfer.model.formats.base import SMALL_BLOCKS, BlockFormat, Format, GpuFormat, NumberFormat
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.families import EMBEDDING
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.interfaces import Blocks, BlockWeights, NamedTensors

_TYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """Types of a loaded model's tensors, and the reason for them."""

    reason: str
    counts: Mapping[str, int]
    """Number of tensors by GGUF type."""
    blocks: tuple[str, ...] = ()
    """GGUF types of the quantised matrices, sorted."""
    bytes: int = 0
    """Bytes of the matrices in blocks."""

    def __str__(self) -> str:
        """Return a summary such as `as in the file: 169 Q4_K, 29 Q6_K`."""
        numbers = set(_TYPE_NAMES.values())
        ordered = sorted(self.counts.items(), key=lambda item: (item[0] in numbers, -item[1], item[0]))
        counts = ", ".join(f"{count} {name}" for name, count in ordered)
        return f"{self.reason}: {counts}" if counts else self.reason


NOT_COUNTED = WeightFormats("not counted", {})


def formats_of_parameters(parameters: Iterable[torch.Tensor]) -> WeightFormats:
    """Return the formats of a model that `transformers` loaded."""
    counts = Counter(
        _TYPE_NAMES.get(name_of(parameter.dtype), name_of(parameter.dtype).upper())
        for parameter in parameters
    )
    return WeightFormats("as transformers loaded them", counts)


def name_of(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


class WeightsInFormat(NamedTensors):
    """Weights in an executor's format; counts the types of read tensors."""

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        chosen: Format,
        backend: str,
        dtype: torch.dtype | str,
        asked: bool = True,
    ) -> None:
        """Prepare reading.

        Args:
            chosen: format of matrices.
            backend: name of the executor.
            dtype: type of all tensors that are not in blocks.
            asked: True if the user chose the format.
        """
        self.format, self._backend, self._dtype, self._asked = chosen, backend, name_of(dtype), asked
        self._in_blocks = isinstance(weights, BlockWeights)
        self._names = self._source = (
            QuantisedWeights(weights, chosen) if isinstance(chosen, BlockFormat) else weights
        )
        self.gives_blocks = (
            backend == "native"
            and self._dtype == "bfloat16"
            and not isinstance(chosen, NumberFormat)
            and isinstance(self._source, BlockWeights)
        )
        """True if `blocks` may return matrices in blocks; False: all have `dtype`."""
        self._numbers: dict[str, str] = {}
        self._blocks: dict[str, str] = {}
        self._bytes: dict[str, int] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._source[name]
        self._numbers[name] = self._type_of(name, tensor.ndim)
        if name != EMBEDDING:  # the embedding is looked up, and may be the head
            self._blocks.pop(name, None)
        return tensor

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in GGUF blocks; None if it has none.

        `as_stored`: do not quantise; return only blocks that the file contains.
        """
        if not self.gives_blocks:
            return None
        assert isinstance(self._source, BlockWeights)
        blocks = self._source.blocks(name, as_stored)
        if blocks is not None:
            self._blocks[name] = blocks[0]
            if not as_stored:  # the embeddings, which are only looked up
                self._bytes[name] = int(blocks[1].nbytes)
        return blocks

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        tensor = read_part(self._source, name, span)
        self._numbers[name] = self._type_of(name, tensor.ndim)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._source, name)

    def formats(self) -> WeightFormats:
        """Return the types of the tensors read so far."""
        counts = Counter([*self._blocks.values(), *self._numbers.values()])
        blocks = set(self._blocks.values())
        if isinstance(self.format, GpuFormat):
            blocks.add(self.format.name.upper())
        return WeightFormats(self._reason(), counts, tuple(sorted(blocks)), sum(self._bytes.values()))

    def _type_of(self, name: str, dimensions: int) -> str:
        if self._backend == "native" and (dimensions == 1 or name.endswith((ROUTER, SHARED_GATE))):
            return "F32"
        if isinstance(self.format, GpuFormat) and dimensions == 2 and ".layers." in name:
            return self.format.name.upper()
        return _TYPE_NAMES[self._dtype]

    def _reason(self) -> str:
        dtype = self._dtype
        if isinstance(self.format, NumberFormat):
            return f"in {dtype}, as asked"
        if isinstance(self.format, GpuFormat):
            return f"quantised to {self.format.name}, as asked"
        if isinstance(self.format, BlockFormat):
            if not self._blocks:
                return f"in {dtype}, as no matrix can be stored in blocks of {self.format.type_name}"
            return f"in {self.format.type_name}, {'as asked' if self._asked else 'as auto is for drafts'}"
        if self._blocks:
            return "as in the file"
        if self._in_blocks and not self.gives_blocks:
            return f"in {dtype}, as the {self._backend} executor in {dtype} multiplies no blocks"
        return f"in {dtype}, as dtype says"


class QuantisedWeights(NamedTensors):
    """Weights whose matrices are quantised while they are read.

    Embeddings are not quantised, the head is. The model's outputs change. For a speculator that costs only time; for a
    target it is the operator's choice.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], chosen: BlockFormat) -> None:
        self._weights = self._names = weights
        self._format = chosen

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._weights, name)

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in blocks; None if its rows fill no blocks.

        Blocks of the file in this format are returned unchanged. `as_stored`: do not quantise; return only blocks
        that the file contains.
        """
        if as_stored:
            return self._weights.blocks(name, True) if isinstance(self._weights, BlockWeights) else None
        shape = self.shape(name)
        if len(shape) != 2 or shape[1] % self._format.block:
            return None
        if isinstance(self._weights, BlockWeights):
            stored = self._weights.blocks(name)
            if stored is not None and stored[0] == self._format.type_name:
                return stored
            if stored is not None and self._format.name == SMALL_BLOCKS:
                from specinfer.model.native.requantise import requantised

                if (requantised_blocks := requantised(stored, shape[1])) is not None:
                    return requantised_blocks
        numbers = self._weights[name]
        return self._format.type_name, like(self._format.quantise(as_floats(numbers)), numbers)
