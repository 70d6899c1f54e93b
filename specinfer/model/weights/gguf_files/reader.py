"""A reader of GGUF files that steps over the lists of a vocabulary.

`gguf` makes two numpy arrays of each of their entries: three seconds of a start for 49,152 tokens and as many merges.
"""

from typing import Any, Literal

import gguf
import numpy as np
from gguf.constants import GGUFEndian, GGUFValueType

_LONG = 4096
"""Entries from which a list is stepped over; those of metadata that is read here have one for each layer at most."""


class QuickReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """`GGUFReader`, whose long lists have no entries."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if count[0] > _LONG and kind[0] != GGUFValueType.ARRAY:
                size = kind.nbytes + count.nbytes
                size += self._size_of(orig_offs + size, GGUFValueType(kind[0]), int(count[0]))
                return size, [kind, count], [], [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
        found: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
        return found

    def _size_of(self, start: int, kind: GGUFValueType, count: int) -> int:
        """Return the bytes of a list's entries.

        Raises:
            IndexError: if the file ends before.
        """
        if kind != GGUFValueType.STRING:
            return count * int(np.dtype(self.gguf_scalar_to_np[kind]).itemsize)
        data, at, end = memoryview(self.data), start, len(self.data) - 8
        order: Literal["little", "big"] = "little" if self.endianess == GGUFEndian.LITTLE else "big"
        for _ in range(count):
            if at > end:
                raise IndexError("a list ends behind the file")
            at += 8 + int.from_bytes(data[at : at + 8], order)
        return at - start
