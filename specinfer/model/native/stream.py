"""Runs passes of the compiled kernels with offloaded layers.

A store has the packed matrices of all layers; memory has those of two layers. Matrices of any format (bfloat16, GGUF
blocks) are packed once, while loading. Norms, biases and column scales stay in memory: they are small.
"""

from __future__ import annotations

import ctypes

import numpy as np

from specinfer.model.lazy_torch import torch
from specinfer.model.native.bindings import MatrixSlot, Pass
from specinfer.model.native.experts import expert_matrices
from specinfer.model.offload.stores import LayerStore
from specinfer.model.offload.stream import BUFFERS, LayerStream, make_buffers
from specinfer.model.weights.config import ModelConfig

_OF_A_LAYER = (
    *(MatrixSlot.QUERY, MatrixSlot.KEY, MatrixSlot.VALUE, MatrixSlot.OUT),
    *(MatrixSlot.GATE, MatrixSlot.UP, MatrixSlot.DOWN),
    *(MatrixSlot.CONVOLVED, MatrixSlot.OUTPUT_GATES, MatrixSlot.STATE_GATES, MatrixSlot.STATE_OUT),
)


class StreamedMatrices:
    """Matrices of offloaded layers: packed into a store, then read in passes."""

    def __init__(self, library: ctypes.CDLL, model: int, config: ModelConfig, store: LayerStore) -> None:
        self._library, self._model, self._store = library, model, store
        self._config = config
        self._sizes: list[dict[int, int]] = []
        """Bytes of each layer's matrices, by slot."""
        self._stream: LayerStream | None = None

    def put_away(self, layer: int) -> None:
        """Move the packed matrices of a layer from memory to the store."""
        slots = self._slots(layer)
        pieces = [self._packed(layer, which) for which in slots]
        self._sizes.append({which: len(piece) for which, piece in zip(slots, pieces, strict=True)})
        self._store.append(pieces)
        for which in slots:
            self._library.si_place(self._model, layer, which, None)

    def forward(self, task: Pass) -> None:
        """Run a pass, reading layer after layer from the store."""
        if self._stream is None:
            self._stream = LayerStream(self._store, make_buffers(BUFFERS, self._store, "cpu"))
        for layer in range(len(self._sizes)):
            task.first_layer, task.end_layer = layer, layer + 1
            with self._stream.hold(layer) as buffer:
                self._place(layer, self._stream.buffers[buffer].memory.data_ptr())
                self._library.si_forward(self._model, ctypes.byref(task))

    def _place(self, layer: int, address: int) -> None:
        for which, size in self._sizes[layer].items():
            self._library.si_place(self._model, layer, which, address)
            address += size

    def _slots(self, layer: int) -> list[int]:
        experts = self._config.experts_of(layer)
        own = expert_matrices(experts, self._config.hidden_size) if experts else ()
        return [*_OF_A_LAYER, *(matrix.slot for matrix in own)]

    def _packed(self, layer: int, which: int) -> torch.Tensor:
        """Return a matrix's packed bytes (uint8); empty if it is absent."""
        at = ctypes.c_void_p()
        size = self._library.si_packed(self._model, layer, which, ctypes.byref(at))
        if not size:  # the layer has no such matrix
            return torch.empty(0, dtype=torch.uint8)
        packed = np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)), (size,))
        return torch.from_numpy(packed)
