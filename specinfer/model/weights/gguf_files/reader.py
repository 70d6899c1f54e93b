"""Reads GGUF metadata quickly: long lists are skipped until they are needed.

The `gguf` package makes two numpy arrays per entry of a list, 20 seconds for 150,000 tokens.
"""

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.constants import GGUFEndian, GGUFValueType

from specinfer.errors import IncompatibleError

_LONG = 4096
"""Lists of at least this length are skipped."""


class QuickReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """A `GGUFReader` that reads long lists only in `value`."""

    def __init__(self, path: Path) -> None:
        self._lists: dict[int, tuple[GGUFValueType, int]] = {}
        """Type and length of each skipped list, by offset in the file."""
        self.path = path
        super().__init__(path)

    def value(self, name: str) -> Any:
        """Return a key's value; reads the list if it was skipped."""
        field = self.fields[name]
        offset = field.offset + 8 + len(name.encode()) + 4  # after length, name and type
        if offset not in self._lists:
            return field.contents()
        return self._read_list(offset + 12, *self._lists[offset])

    def bytes_of(self, tensor: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read rows `start` to `stop` of a tensor, as stored.

        Raises:
            IncompatibleError: if the file ends within the rows.
        """
        rows = tensor.data[start:stop]
        row = rows.nbytes // len(rows) if len(rows) else 0
        read = np.fromfile(self.path, np.uint8, rows.nbytes, offset=int(tensor.data_offset) + start * row)
        if read.nbytes != rows.nbytes:
            raise IncompatibleError(f"{self.path} ends in {tensor.name}: copy the file again")
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
        """Return the size of a list in bytes.

        Raises:
            IndexError: if the file ends within the list.
        """
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
