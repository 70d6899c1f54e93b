"""Reads GGUF metadata quickly: long lists are read on request.

The `gguf` package makes two numpy arrays per entry of a list, 20 seconds for 150,000 tokens.
"""

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.constants import GGUFEndian, GGUFValueType

from specinfer.errors import IncompatibleError

_LONG = 4096
"""Minimum length of a list that is skipped."""


class QuickReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """A `GGUFReader` that skips long lists; `value` reads them."""

    def __init__(self, path: Path) -> None:
        self._lists: dict[int, tuple[GGUFValueType, int]] = {}
        """Type and length of each skipped list, by offset in the file."""
        self.path = path
        super().__init__(path)

    def value(self, name: str) -> Any:
        """Return a metadata value; read a skipped list now."""
        field = self.fields[name]
        offset = field.offset + 8 + len(name.encode()) + 4  # after length, name and type
        if offset not in self._lists:
            return field.contents()
        return self._read_list(offset + 12, *self._lists[offset])

    def bytes_of(self, tensor: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read a tensor's rows `start` to `stop` from the file, as stored.

        Raises:
            IncompatibleError: if the file ends within them.
        """
        rows = tensor.data[start:stop]
        row = rows.nbytes // len(rows) if len(rows) else 0
        read = np.fromfile(self.path, np.uint8, rows.nbytes, offset=int(tensor.data_offset) + start * row)
        if read.nbytes != rows.nbytes:
            raise IncompatibleError(f"{self.path} ends in {tensor.name}")
        rows_of_bytes: np.ndarray = read.view(rows.dtype).reshape(rows.shape)
        return rows_of_bytes

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if count[0] > _LONG and kind[0] != GGUFValueType.ARRAY:
                size = kind.nbytes + count.nbytes
                type_and_count = GGUFValueType(kind[0]), int(count[0])
                size += self._size_of(orig_offs + size, *type_and_count)
                self._lists[orig_offs] = type_and_count
                return size, [kind, count], [], [GGUFValueType.ARRAY, type_and_count[0]]
        parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
        return parts

    @property
    def _order(self) -> Literal["little", "big"]:
        return "little" if self.endianess == GGUFEndian.LITTLE else "big"

    def _size_of(self, start: int, kind: GGUFValueType, count: int) -> int:
        """Return the number of bytes of a list's entries.

        Raises:
            IndexError: if the file ends within them.
        """
        if kind != GGUFValueType.STRING:
            return count * int(np.dtype(self.gguf_scalar_to_np[kind]).itemsize)
        data, at, end, order = memoryview(self.data), start, len(self.data) - 8, self._order
        for _ in range(count):
            if at > end:
                raise IndexError("the file ends within a list")
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
