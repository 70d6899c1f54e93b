"""Runs passes in the compiled kernels, in float32 or bfloat16.

The file knows flattened passes and cache slots, not requests. A token's result does not depend on the other tokens of
the pass (kernels.cpp), so trees, chains and plain decoding agree bit for bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import IncompatibleError
from specinfer.model.arrays import Array, address
from specinfer.model.batch import Batch
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.formats.weights_in_format import name_of
from specinfer.model.lazy_torch import torch
from specinfer.model.native.bindings import BLOCK, MatrixSlot, Pass, Storage
from specinfer.model.native.model import NativeModel
from specinfer.model.native.recurrent import NativeStates, TokenState
from specinfer.model.native.stream import StreamedMatrices
from specinfer.model.offload.stores import LayerStore
from specinfer.model.threads import pass_threads
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Blocks, Weights
from specinfer.system.progress import progress
from specinfer.tree import TokenTree

assert BLOCK == BLOCK_TOKENS  # the layout of keys and values depends on it

Int32 = NDArray[np.int32]


def pass_of(batch: Batch) -> tuple[Pass, Int32]:
    """Return the kernels' arguments for a pass.

    They point into the second result, an array that must stay in memory.
    """
    rows = batch.rows
    extra = [positions for part in rows for positions in part.extra]
    lists: dict[str, Sequence[int]] = {
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "write_slots": batch.write_slots,
        "visible": [v for part in rows for v in part.visible],
        "extra_start": [*accumulate(map(len, extra), initial=0)],
        "extra": [p for positions in extra for p in positions],
        "row_start": [*(part.start for part in rows), len(batch.token_ids)],
        "block_start": [*accumulate((len(part.blocks) for part in rows), initial=0)],
        "blocks": [b for part in rows for b in part.blocks],
        "logit_rows": batch.logit_rows,
    }
    numbers = np.array([*chain(*lists.values())], np.int32)  # one array, as each conversion takes time
    starts = accumulate(map(len, lists.values()), initial=0)
    address = numbers.ctypes.data
    places = {name: address + start * numbers.itemsize for name, start in zip(lists, starts, strict=False)}
    return Pass(
        tokens=len(batch.token_ids), sequences=len(rows), logits=len(batch.logit_rows), **places
    ), numbers


class NativeExecutor:
    """A decoder's packed weights, and the memory of its KV cache."""

    name = "native"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype | str,
        num_blocks: int,
        store: LayerStore | None = None,
        kv_type: str = "auto",
    ) -> None:
        """Load the model; `store`, if given, stores the layers' matrices."""
        self.config, self.dtype = config, name_of(dtype)
        self._model = NativeModel(config, self.dtype, kv_type)
        self._library, self._address = self._model.library, self._model.address
        own = (self._library, self._address, config)
        self._streamed = None if store is None else StreamedMatrices(*own, store)
        self._embedding = self._pack(weights)
        self._memory = self._model.memory(num_blocks)
        self._growth = self._model.growth(self._memory)
        self._recurrent = NativeStates.of(self._model)

    @property
    def recurrent_states(self) -> RecurrentStates[TokenState] | None:
        return self._recurrent.states if self._recurrent is not None else None

    def _pack(self, weights: Weights) -> Array:
        """Pack all weights; return the embeddings, which the kernels read in place."""
        packer = self._model.packer(weights)
        with progress(f"reading and packing weights of {self.config.layers} layers") as report:
            for layer in range(self.config.layers):
                packer.pack_layer(layer)
                if self._streamed is not None:
                    self._streamed.put_away(layer)
                report(layer + 1, self.config.layers + 1)
            return packer.pack_ends()

    @property
    def cache_bytes(self) -> int:
        return self._memory.bytes

    @property
    def block_bytes(self) -> int:
        return self._memory.bytes // self._memory.blocks

    @property
    def block_layout(self) -> str:
        """Name of the kernels' library and the cache's numeric type.

        The library's name contains the hash of its sources and options, which determine the rounding.
        """
        return f"{Path(self._library._name).stem} {self._model.cache.name}"

    def read_block(self, block: int) -> bytes:
        keys, values = self._memory.block(block)
        return keys.tobytes() + values.tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        content = np.frombuffer(data, np.uint8).reshape(2, self.config.kv_layers, -1)
        for to, part in zip(self._memory.block(block), content, strict=True):
            to[:] = part

    def run(self, batch: Batch) -> NDArray[np.float32]:
        logits = np.empty((len(batch.logit_rows), self.config.vocab_size), np.float32)
        wanted = batch.features
        layers = np.array(wanted.layers if wanted else (), np.int32)
        task, _numbers = pass_of(batch)
        self._memory.put(task)
        task.logits_out, task.threads = logits.ctypes.data, pass_threads()
        task.sparse = len(batch.rows) < len(
            batch.logit_rows
        )  # trees: acceptance only reads the rows of one path
        task.features, task.feature_layers = len(layers), layers.ctypes.data
        task.features_out = wanted.states.ctypes.data if wanted else None
        task.end_layer = self.config.layers
        if self._recurrent is None:
            self._forward(task)
        else:
            with self._recurrent.over(batch) as call:
                task.recurrence = ctypes.addressof(call)
                self._forward(task)
        return logits

    def _forward(self, task: Pass) -> None:
        if self._streamed is not None:
            self._streamed.forward(task)
        else:
            self._library.si_forward(self._address, ctypes.byref(task))

    def set_head(self, blocks: Blocks) -> None:
        kind, rows = blocks
        self._library.si_set_matrix(self._address, 0, MatrixSlot.HEAD, Storage[kind], address(rows))

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Return whether the kernels can grow trees: not with recurrent layers."""
        return self._recurrent is None

    def grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: Array) -> list[TokenTree]:
        if self._streamed is not None:
            raise IncompatibleError("offload: must be none for a draft model, whose layers must be in memory")
        return self._growth.grow(tasks, shape, token_ids)

    def move(self, source: Slots, target: Slots) -> None:
        pair = [np.array(slots, np.int32) for slots in (source, target)]
        self._library.si_move(
            self._address,
            self._memory.keys.ctypes.data,
            self._memory.values.ctypes.data,
            self._memory.blocks,
            len(source),
            *(slots.ctypes.data for slots in pair),
        )

    def rotate(self, slots: Slots, delta: int) -> None:
        angles = np.array(self.config.inv_freq, np.float32) * np.float32(delta)
        cos, sin, here = np.cos(angles), np.sin(angles), np.array(slots, np.int32)
        self._library.si_rotate(
            self._address,
            self._memory.keys.ctypes.data,
            self._memory.blocks,
            len(here),
            here.ctypes.data,
            cos.ctypes.data,
            sin.ctypes.data,
        )
