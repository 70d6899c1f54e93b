"""Reads a model's tensors and configuration from a GGUF file.

Tensors get Hugging Face's names. They are read one at a time on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import IncompatibleError
from specinfer.model.families import gguf_layout
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.files import TensorSlice
from specinfer.model.weights.gguf_files.keys import Metadata
from specinfer.model.weights.gguf_files.metadata import ROPE_TENSORS, GgufFile, hf_names
from specinfer.model.weights.gguf_files.parts import read_fields, read_parts
from specinfer.model.weights.gguf_files.vocabulary import Vocabulary
from specinfer.model.weights.interfaces import Blocks, NamedTensors

MATRICES = frozenset(
    {
        *("F16", "BF16", "F32"),
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    }
)
"""GGUF types of matrices that the kernels multiply, returned by `GgufWeights.blocks`."""


class GgufWeights(NamedTensors):
    """Tensors of a GGUF file under Hugging Face names, in float32.

    With `in_numpy` set, arrays take the place of tensors, and torch is not loaded.

    They are read from the file on request: pages of a mapped file would count as memory of the process.
    """

    def __init__(self, path: Path, blocks: bool = True, mtp: bool = False) -> None:
        """Open the file.

        Args:
            blocks: False: `blocks` returns None for all tensors, so they are dequantised.
            mtp: True: only the layers for multi-token prediction; False: all other tensors.
        """
        self._blocks, self.in_numpy = blocks, False
        readers = read_parts(path)
        self.parts = len(readers)
        """Number of files of the model."""
        self._tensors = {tensor.name: (reader, tensor) for reader in readers for tensor in reader.tensors}
        self.metadata = Metadata(read_fields(readers[0]))
        self._first = readers[0]
        self._layout = layout = gguf_layout(self.metadata.architecture)
        self._heads = self._kv_heads = 0
        if layout.attends:
            self._heads, self._kv_heads = self.metadata.heads()
        layers = self.metadata.count("block_count")
        if layers > len(self._tensors):
            raise IncompatibleError(
                f"GGUF: block_count = {layers}: must be at most {len(self._tensors)}, the number of tensors"
            )
        main_layers = self.metadata.layers
        predicting = tuple(f"blk.{layer}." for layer in range(main_layers, layers))
        self._tensors = {
            name: stored for name, stored in self._tensors.items() if name.startswith(predicting) == mtp
        }
        if mtp:
            names = hf_names(layout.parts | layout.mtp_parts, range(main_layers, layers), {}, {})
        else:
            names = hf_names(layout.parts, range(main_layers), layout.tensors, layout.top, layout.layers)
        self._names = {hf: name for hf, name in names if name in self._tensors}
        self._check_tensors()

    def _check_tensors(self) -> None:
        """Check that each tensor's name is known, and its type supported."""
        import gguf

        if unused := sorted(self._tensors.keys() - self._names.values() - ROPE_TENSORS):
            raise IncompatibleError(
                f"GGUF: tensor {unused[0]} is not supported ({len(unused)} unknown tensors)"
            )
        plain = {kind.name for kind in gguf.quants._type_traits} | {"F32", "F16"}
        for name, (_, tensor) in self._tensors.items():
            if tensor.tensor_type.name not in plain:
                raise IncompatibleError(
                    f"GGUF: {name} has type {tensor.tensor_type.name}: supported are {', '.join(sorted(plain))}"
                )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary({name: self._first.value(name) for name in self._first.fields})

    @property
    def rope_factors(self) -> dict[str, list[float]]:
        """Lists of divisors of the rotary frequencies, by tensor name."""
        stored = {name: self._tensors[name][1].data for name in ROPE_TENSORS & self._tensors.keys()}
        for name, divisors in stored.items():
            if not (np.isfinite(divisors) & (divisors > 0)).all():
                raise IncompatibleError(f"GGUF: {name}: must have finite numbers above 0")
        return {name: divisors.tolist() for name, divisors in stored.items()}

    @property
    def parameters(self) -> int:
        return sum(int(tensor.n_elements) for _, tensor in self._tensors.values())

    def bytes_by_type(self) -> Counter[str]:
        sizes = Counter[str]()
        for _, tensor in self._tensors.values():
            sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
        return sizes

    def config(self) -> Any:
        shapes = {
            name: tuple(map(int, reversed(tensor.shape))) for name, (_, tensor) in self._tensors.items()
        }
        file = GgufFile(self.metadata, shapes, self.rope_factors)
        common = file.common_fields() if self._layout.attends else file.embedding_fields()
        config, metadata_config = self._layout.config(file)
        self.metadata.check_used()
        return config(**(common | metadata_config))

    @property
    def plain(self) -> bool:
        """True if tensors need no change but the order of their rows."""
        return self._layout.undo_converter is None

    def _made(self, array: NDArray[Any]) -> Any:
        return array if self.in_numpy else torch.from_numpy(array)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._numbers(name)

    def _undone(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        assert self._layout.undo_converter is not None, "only called for layouts with `undo_converter`"
        original = self._layout.undo_converter(self.metadata, name, tensor, 1)
        assert original is not None, "numbers can be put in any order"
        return original

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        """Return a part of a tensor.

        Only this part is read, unless the file's rows are in another order.
        """
        in_layer = ".layers." in name  # converters do not change embeddings and head
        if span.dim or self._row_heads(name) or (self._layout.undo_converter is not None and in_layer):
            return self[name].narrow(span.dim, span.start, span.stop - span.start).clone()
        return self._numbers(name, span.start, span.stop)

    def _numbers(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        import gguf

        reader, stored = self._tensors[self._names[name]]
        array = gguf.dequantize(reader.bytes_of(stored, start, stop), stored.tensor_type)
        tensor = self._in_order(name, self._made(np.asarray(array, np.float32)))
        if self._layout.undo_converter is not None:
            return self._undone(name, tensor)
        return tensor - 1 if self._layout.norms_plus_one and name.endswith("norm.weight") else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(int(size) for size in reversed(self._tensors[self._names[name]][1].shape))
        if self._layout.undo_converter is None:
            return shape
        return tuple(self._undone(name, torch.empty(shape, device="meta")).shape)

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix as stored; None if the kernels lack its type."""
        reader, stored = self._tensors[self._names[name]]
        if not self.in_blocks(name):
            return None
        rows = self._in_order(name, self._made(reader.bytes_of(stored).view(np.uint8)))
        if self._layout.undo_converter is not None:
            import gguf

            weights, _ = gguf.GGML_QUANT_SIZES[stored.tensor_type]
            undone = self._layout.undo_converter(self.metadata, name, rows, weights)
            return None if undone is None else (stored.tensor_type.name, undone)
        return stored.tensor_type.name, rows

    def in_blocks(self, name: str) -> bool:
        """Return whether `blocks` returns a matrix."""
        _, stored = self._tensors[self._names[name]]
        return self._blocks and len(stored.shape) == 2 and stored.tensor_type.name in MATRICES

    def stacked(self, name: str, index: int) -> Blocks | None:
        """Read one matrix of a stacked tensor, as stored."""
        reader, stored = self._tensors[self._names[name]]
        if not self._blocks or stored.tensor_type.name not in MATRICES:
            return None
        rows = self._made(reader.bytes_of(stored, index, index + 1).view(np.uint8))
        return stored.tensor_type.name, rows[0]

    def some_blocks(self, name: str, rows: Sequence[int]) -> Blocks | None:
        """Read some rows of embeddings or head as stored; None if the kernels lack their type."""
        reader, stored = self._tensors[self._names[name]]
        if not self.in_blocks(name) or self._layout.undo_converter is not None:
            blocks = self.blocks(name)
            return None if blocks is None else (blocks[0], blocks[1][list(rows)])
        read = [reader.bytes_of(stored, row, row + 1) for row in rows]
        return stored.tensor_type.name, self._made(np.concatenate(read).view(np.uint8))

    def _row_heads(self, name: str) -> int:
        """Return the number of heads with reordered rows; 0: none are reordered."""
        if self._layout.interleaved_rope and ".q_proj." in name:
            return self._heads
        return self._kv_heads if self._layout.interleaved_rope and ".k_proj." in name else 0

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        heads = self._row_heads(name)
        if not heads:
            return rows
        if len(rows) % (2 * heads):
            raise IncompatibleError(f"{name} has {len(rows)} rows: must be twice a multiple of {heads} heads")
        return _unpermute(rows, heads)


def _unpermute(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's reordering of rotary pairs.

    Rows (h, D/2, 2, ...) become (h, 2, D/2, ...).
    """
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
