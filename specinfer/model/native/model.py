"""Creates models in the compiled kernels, and the memory of their caches."""

from __future__ import annotations

import ctypes
from dataclasses import asdict

import numpy as np

from specinfer.errors import IncompatibleError
from specinfer.model.arrays import stored_as
from specinfer.model.families.base import RecurrentShape
from specinfer.model.native.bindings import BLOCK, LANES, Activation, CacheKind, RecurrentKind, Shape
from specinfer.model.native.build import load_library
from specinfer.model.native.expansion import CacheMemory, NativeGrowth
from specinfer.model.native.weights import WeightPacker
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights
from specinfer.model.weights.rotary import all_rotary_tables


def check_supported(config: ModelConfig, dtype: str, device: str) -> None:
    """Check that the kernels can run a model."""
    if device != "cpu":
        raise IncompatibleError(f"native kernels: device = {device!r}: must be cpu")
    if dtype not in ("float32", "bfloat16"):
        raise IncompatibleError(f"native kernels: dtype = {dtype}: float32 and bfloat16 are supported")
    sizes = [config.hidden_size, config.intermediate_size]
    if config.experts is not None:
        sizes += [config.experts.intermediate_size, config.experts.shared_size]
    if odd := [size for size in sizes if size % 2]:
        raise IncompatibleError(f"native kernels: hidden or MLP size {odd[0]}: must be even")
    if config.head_dim % LANES:
        raise IncompatibleError(
            f"native kernels: head_dim = {config.head_dim}: must be a multiple of {LANES}"
        )
    shape = config.recurrent_shape
    if shape is not None and (shape.key_dim % LANES or shape.value_dim % LANES):
        raise IncompatibleError(
            f"native kernels: recurrent heads have key size {shape.key_dim} and value size {shape.value_dim}: "
            f"both must be multiples of {LANES}"
        )
    if shape is not None and not 1 < shape.convolved <= BLOCK:
        raise IncompatibleError(
            f"native kernels: convolution over {shape.convolved} tokens: must be from 2 to {BLOCK}"
        )
    load_library()


def _recurrent_fields(shape: RecurrentShape | None) -> dict[str, int]:
    if shape is None:
        return {"convolved": 1}
    found = asdict(shape)
    del found["factors"]  # packing multiplies the convolution's weights by them
    return found | {"recurrent_kind": RecurrentKind[found.pop("kind").upper()]}


def _rounded(factor: float, dtype: str) -> float:
    """Return a factor as a number of the model's type."""
    stored = np.asarray(stored_as(np.array([factor], np.float32), dtype))
    return float(stored[0] if dtype == "float32" else (stored.astype(np.uint32) << 16).view(np.float32)[0])


def cache_kind(kv_type: str, dtype: str) -> CacheKind:
    if kv_type == "q8_0":
        return CacheKind.BYTES_CACHE
    if kv_type == "bf16" or dtype == "bfloat16":
        return CacheKind.BFLOAT16_CACHE
    return CacheKind.FLOAT32_CACHE


class NativeModel:
    """A model in the kernels; a `WeightPacker` sets its weights."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: str,
        kv_type: str,
        states: int = 0,
        residual_normed: bool = False,
    ) -> None:
        """Create the model, without weights.

        Args:
            states: for EAGLE, number of the target's hidden states that fc reads.
            residual_normed: for EAGLE, whether the residual is the normed hidden state.
        """
        check_supported(config, dtype, "cpu")
        self.config, self.dtype, self.library = config, dtype, load_library()
        self.cache = cache_kind(kv_type, dtype)
        self._states = states
        tables = all_rotary_tables(config)
        shape = Shape(
            layers=config.layers,
            hidden=config.hidden_size,
            inter=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            vocab=config.vocab_size,
            max_positions=config.max_positions,
            rotary=config.rotary_dim,
            tables=len(tables),
            activation=Activation[config.activation.upper()],
            gated=config.gated,
            parallel=config.parallel,
            states=states,
            residual_normed=residual_normed,
            eps=config.norm_eps,
            embedding_scale=_rounded(config.embedding_scale, dtype),
            score_scale=config.score_scale,
            residual_scale=config.residual_scale,
            score_cap=config.score_cap,
            bound=config.qkv_bound,
            logit_cap=config.logit_cap,
            kv_layers=config.kv_layers,
            output_gate=config.output_gate,
            **_recurrent_fields(config.recurrent_shape),
        )
        cos, sin = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        self.address = self.library.si_model_new(
            ctypes.byref(shape), self.cache, cos.ctypes.data, sin.ctypes.data
        )
        for layer in range(config.layers):
            self.library.si_set_layer(
                self.address, layer, config.window(layer), config.rotary_of(layer), config.cache_index(layer)
            )

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.library.si_model_free(self.address)

    def packer(self, weights: Weights) -> WeightPacker:
        return WeightPacker(self.library, self.address, self.config, self.dtype, weights, self._states)

    def memory(self, num_blocks: int) -> CacheMemory:
        """Return zeroed memory for this many blocks.

        A page takes physical memory only after its first write.
        """
        config = self.config
        layers = config.kv_layers
        size = layers * num_blocks * config.kv_heads * self.library.si_block_bytes(self.address)
        return CacheMemory(np.zeros(size, np.uint8), np.zeros(size, np.uint8), num_blocks, layers)

    def growth(self, memory: CacheMemory) -> NativeGrowth:
        library, address = self.library, self.address
        return NativeGrowth(lambda call: library.si_grow(address, ctypes.byref(call)), memory)
