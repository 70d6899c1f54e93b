"""The executor that runs passes in the compiled kernels: float32 and bfloat16 on a CPU.

Must not know requests: it sees flattened passes and cache slots. Its results for a token do not depend on
what else is in the pass (kernels.cpp), so trees, chains and plain decoding agree bit for bit.
"""

import ctypes
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.drafting.native import CacheMemory, NativeGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.executors.native_stream import StreamedMatrices
from specinfer.model.executors.native_weights import WeightPacker
from specinfer.model.layers.transformer import Weights, rotary_tables
from specinfer.model.native.bindings import BLOCK, LANES, Activation, Pass, Shape
from specinfer.model.native.build import load_library
from specinfer.model.offload.stores import LayerStore
from specinfer.model.weights.config import ModelConfig
from specinfer.tree import TokenTree

assert BLOCK == BLOCK_TOKENS  # the kernels lay keys and values out by it

Int32 = NDArray[np.int32]


def check_supported(config: ModelConfig, dtype: torch.dtype, device: str) -> None:
    """Says why the native executor cannot run a model, if so.

    Raises:
        UnavailableError: if this machine cannot build or run the kernels.
        IncompatibleError: if the kernels do not know this kind of model.
    """
    if device != "cpu":
        raise IncompatibleError(f"native kernels: device = {device!r} is not the CPU")
    if dtype not in (torch.float32, torch.bfloat16):
        raise IncompatibleError(f"native kernels: dtype = {dtype}: float32 and bfloat16 are supported")
    if config.head_dim % LANES or config.hidden_size % 2 or config.intermediate_size % 2:
        raise IncompatibleError(
            f"native kernels: head_dim = {config.head_dim}: must be a multiple of {LANES}"
        )
    load_library()


class NativeExecutor:
    """A decoder's packed weights and its cache memory."""

    name = "native"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        num_blocks: int,
        store: LayerStore | None = None,
    ) -> None:
        """`store`: where the layers' matrices lie, if not in memory."""
        check_supported(config, dtype, "cpu")
        self.config, self.dtype, self._num_blocks = config, dtype, num_blocks
        self._library = load_library()
        shape = Shape(
            config.layers,
            config.hidden_size,
            config.intermediate_size,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.vocab_size,
            config.max_positions,
            config.rotary_dim,
            Activation[config.activation.upper()],
            config.gated,
            config.parallel,
            config.norm_eps,
        )
        cos, sin = (t[:, : config.rotary_dim // 2].contiguous() for t in rotary_tables(config))
        self._model = self._library.si_model_new(
            ctypes.byref(shape), dtype is torch.bfloat16, cos.data_ptr(), sin.data_ptr()
        )
        self._streamed = None if store is None else StreamedMatrices(self._library, self._model, store)
        self._embedding = self._pack(weights)
        entries = config.layers * num_blocks * BLOCK_TOKENS * config.kv_heads * config.head_dim
        self._keys = torch.zeros(entries, dtype=dtype)
        self._values = torch.zeros(entries, dtype=dtype)
        library, model = self._library, self._model
        memory = CacheMemory(self._keys, self._values, num_blocks)
        self._growth = NativeGrowth(lambda call: library.si_grow(model, ctypes.byref(call)), memory)

    def __del__(self) -> None:
        if hasattr(self, "_model"):
            self._library.si_model_free(self._model)

    def run(self, batch: Batch) -> torch.Tensor:
        """[R, V] float32 logits of one pass; writes its keys and values into the cache."""
        rows = batch.rows
        logits = torch.empty(len(batch.logit_rows), self.config.vocab_size)
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
        numbers = np.array([*chain(*lists.values())], np.int32)  # one array: conversions are what takes time
        starts = accumulate(map(len, lists.values()), initial=0)
        address = numbers.ctypes.data
        wanted = batch.features
        layers = np.array(wanted.layers if wanted else (), np.int32)
        task = Pass(
            tokens=len(batch.token_ids),
            sequences=len(rows),
            logits=len(batch.logit_rows),
            keys=self._keys.data_ptr(),
            values=self._values.data_ptr(),
            cache_blocks=self._num_blocks,
            logits_out=logits.data_ptr(),
            threads=torch.get_num_threads(),
            sparse=len(rows) < len(batch.logit_rows),  # of a tree only the nodes of one path
            features=len(layers),
            feature_layers=layers.ctypes.data,
            features_out=wanted.states.ctypes.data if wanted else None,
            end_layer=self.config.layers,
            **{name: address + start * numbers.itemsize for name, start in zip(lists, starts, strict=False)},
        )
        if self._streamed is not None:
            self._streamed.forward(task)
        else:
            self._library.si_forward(self._model, ctypes.byref(task))
        return logits

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """See `Grower.can_grow`: all trees."""
        return True

    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """See `Grower.grow`."""
        if self._streamed is not None:
            raise IncompatibleError("offload: the model's layers are not in memory, as drafting wants them")
        return self._growth.grow(tasks, shape, token_ids)

    def move(self, source: Slots, target: Slots) -> None:
        """Copies cache entries; all sources are read before any target is written."""
        pair = [np.array(slots, np.int32) for slots in (source, target)]
        self._library.si_move(
            self._model,
            self._keys.data_ptr(),
            self._values.data_ptr(),
            self._num_blocks,
            len(source),
            *(slots.ctypes.data for slots in pair),
        )

    def rotate(self, slots: Slots, delta: int) -> None:
        """See `KVStorage.rotate`."""
        angles = torch.tensor(self.config.inv_freq) * delta
        cos, sin, here = angles.cos(), angles.sin(), np.array(slots, np.int32)
        self._library.si_rotate(
            self._model,
            self._keys.data_ptr(),
            self._num_blocks,
            len(here),
            here.ctypes.data,
            cos.data_ptr(),
            sin.data_ptr(),
        )

    def _pack(self, weights: Weights) -> torch.Tensor:
        """Packs all weights; returns the embedding table, which the kernels read in place."""
        packer = WeightPacker(self._library, self._model, self.config, self.dtype, weights)
        for layer in range(self.config.layers):
            packer.pack_layer(layer)
            if self._streamed is not None:
                self._streamed.put_away(layer)
        return packer.pack_ends()
