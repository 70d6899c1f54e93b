"""Keeps only some rows of a draft's head: heads are large."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from specinfer.model.lazy_torch import torch
from specinfer.model.weights.account import HEAD
from specinfer.model.weights.families import EMBEDDING
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.interfaces import Blocks, BlockWeights, NamedTensors


@runtime_checkable
class StoredRows(Protocol):
    """Weights from which stored rows of matrices can be read singly."""

    def some_blocks(self, name: str, rows: Sequence[int]) -> Blocks | None: ...


class TrimmedWeights(NamedTensors):
    """Weights under Llama's names, with only some rows of the head."""

    def __init__(self, weights: Mapping[str, torch.Tensor], token_ids: Sequence[int]) -> None:
        self._weights, self._token_ids = weights, np.array(token_ids)
        self._names = dict.fromkeys([*weights, HEAD])
        self._head = HEAD if HEAD in weights else EMBEDDING
        """Name of the tensor from which the head's rows are read."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[self._head][self._token_ids] if name == HEAD else self._weights[name]

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        if name == HEAD:
            return self[HEAD].narrow(span.dim, span.start, span.stop - span.start)
        return read_part(self._weights, name, span)

    def shape(self, name: str) -> tuple[int, ...]:
        if name != HEAD:
            return shape_of(self._weights, name)
        return len(self._token_ids), *shape_of(self._weights, self._head)[1:]


class TrimmedBlockWeights(TrimmedWeights):
    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        assert isinstance(self._weights, BlockWeights)
        if name != HEAD:
            return self._weights.blocks(name, as_stored)
        if isinstance(self._weights, StoredRows):
            return self._weights.some_blocks(self._head, self._token_ids.tolist())
        blocks = self._weights.blocks(self._head, as_stored)
        return None if blocks is None else (blocks[0], blocks[1][self._token_ids])


def trimmed(weights: Mapping[str, torch.Tensor], token_ids: Sequence[int]) -> TrimmedWeights:
    """Return weights with a head for these tokens, in this order."""
    kind = TrimmedBlockWeights if isinstance(weights, BlockWeights) else TrimmedWeights
    return kind(weights, token_ids)


class TrimmedHead:
    """A head with few rows, which can be replaced during operation."""

    def __init__(
        self,
        weights: StoredRows,
        name: str,
        token_ids: Sequence[int],
        set_head: Callable[[Blocks], None],
        in_format: Callable[[Blocks], Blocks] = lambda blocks: blocks,
    ) -> None:
        """Read the rows of `token_ids`; `replace` passes changed rows to `set_head`.

        `in_format` quantises stored rows to the head's format.
        """
        self._weights, self._name, self._set_head, self._in_format = weights, name, set_head, in_format
        self._blocks = in_format(self._read(token_ids))

    def replace(self, tokens: Mapping[int, int]) -> None:
        """Replace rows of the head; `tokens` maps rows to new tokens."""
        self._blocks[1][list(tokens)] = self._in_format(self._read([*tokens.values()]))[1]
        self._set_head(self._blocks)

    def _read(self, token_ids: Sequence[int]) -> Blocks:
        blocks = self._weights.some_blocks(self._name, token_ids)
        assert blocks is not None, self._name
        return blocks
