"""Reads GGUF metadata quickly: lists are skipped until they are needed.

The `gguf` package makes two numpy arrays per entry of a list, 20 seconds for 150,000 tokens. Sizes and places are
checked before anything is read.
"""

import os
import weakref
from math import prod
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.constants import GGUFEndian, GGUFValueType

from specinfer.errors import IncompatibleError

_MOST = {"keys": 1 << 16, "tensors": 1 << 16, "entries of a list": 1 << 22}


class QuickReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """A `GGUFReader` that reads lists only in `value`.

    The file stays open, so it may be moved.
    """

    def __init__(self, path: Path) -> None:
        self._lists: dict[int, tuple[GGUFValueType, int]] = {}
        """Type and length of each skipped list, by offset in the file."""
        self.path, self._name = path, ""
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        super().__init__(path)

    def value(self, name: str) -> Any:
        """Return a key's value; reads the list if it was skipped."""
        field = self.fields[name]
        offset = field.offset + 8 + len(name.encode()) + 4  # after length, name and type
        if offset not in self._lists:
            return field.contents()
        return self._read_list(offset + 12, *self._lists[offset])

    def bytes_of(self, tensor: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read rows `start` to `stop` of a tensor, as stored."""
        rows = tensor.data[start:stop]
        row = rows.nbytes // len(rows) if len(rows) else 0
        read: Any = np.empty(rows.nbytes, np.uint8)
        left, place = memoryview(read), int(tensor.data_offset) + start * row
        while left and (count := os.preadv(self._file, [left], place)):
            left, place = left[count:], place + count
        if left:
            raise IncompatibleError(f"{self.path} ends in {tensor.name}: copy the file again")
        rows_of_bytes: np.ndarray = read.view(rows.dtype).reshape(rows.shape)
        return rows_of_bytes

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise IndexError("the file ends within its metadata: copy it again")
        return super()._get(int(offset), dtype, count, override_order)

    def _get_str(self, offset: int) -> Any:
        text = super()._get_str(offset)
        self._name = str(bytes(text[1]), "utf-8", "replace")
        return text

    def _build_fields(self, offs: int, count: int) -> Any:
        return super()._build_fields(offs, self._bounded("keys", count))

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        return super()._build_tensor_info(offs, self._bounded("tensors", count))

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        ends = [(int(start_offs) + _end_of(field), field.name) for field in fields]
        needed, last = max(ends, default=(0, ""))
        if (size := len(self.data)) < needed:
            raise IncompatibleError(
                f"{self.path}: {needed - size} bytes are missing: the file has {size} of {needed} bytes and ends "
                f"before tensor {last!r:.80} does: copy it again"
            )
        super()._build_tensors(start_offs, fields)

    def _bounded(self, what: str, count: Any) -> int:
        if int(count) > _MOST[what]:
            raise ValueError(f"{self._name!r:.80}: {int(count)} {what}: must be at most {_MOST[what]}")
        return int(count)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        if kind[0] == GGUFValueType.ARRAY:
            raise ValueError(f"{self._name!r:.80}: is a list of lists")
        type_and_count = GGUFValueType(kind[0]), self._bounded("entries of a list", count[0])
        size = kind.nbytes + count.nbytes
        size += self._size_of(orig_offs + size, *type_and_count)
        self._lists[orig_offs] = type_and_count
        return size, [kind, count], [], [GGUFValueType.ARRAY, type_and_count[0]]

    @property
    def _order(self) -> Literal["little", "big"]:
        return "little" if self.endianess == GGUFEndian.LITTLE else "big"

    def _size_of(self, start: int, kind: GGUFValueType, count: int) -> int:
        """Return the size of a list in bytes."""
        if kind != GGUFValueType.STRING:
            return count * int(np.dtype(self.gguf_scalar_to_np[kind]).itemsize)
        data, at, end, order = memoryview(self.data), start, len(self.data) - 8, self._order
        for _ in range(count):
            if at > end:
                raise IndexError("the file ends within a list of its metadata")
            at += 8 + int.from_bytes(data[at : at + 8], order)
        return at - start

    def _read_list(self, start: int, kind: GGUFValueType, count: int) -> list[Any]:
        if kind != GGUFValueType.STRING:
            values: list[Any] = self._get(start, self.gguf_scalar_to_np[kind], count).tolist()
            return values
        data, at, order, texts = memoryview(self.data), start, self._order, []
        for _ in range(count):
            size = int.from_bytes(data[at : at + 8], order)
            texts.append(str(data[at + 8 : at + 8 + size], "utf-8"))
            at += 8 + size
        return texts


def _end_of(field: Any) -> int:
    """Return a tensor's end in bytes after the metadata."""
    _, _, _, dims, kind, offset = field.parts
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
    return int(offset[0]) + int(prod(dims.tolist()) // weights * size)
