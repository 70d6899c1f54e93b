"""Packs a model's weights into the layouts of the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import IncompatibleError
from specinfer.model.arrays import Array, address, as_floats, contiguous, stored_as
from specinfer.model.families.base import RecurrentShape
from specinfer.model.families.experts import ROUTER, ROUTER_BIAS, SHARED_GATE, SINKS, Experts
from specinfer.model.native.bindings import MatrixSlot, Storage, VectorSlot
from specinfer.model.native.experts import EXPERT_BIASES, expert_matrices, expert_shape
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, POSITIONS
from specinfer.model.weights.files import shape_of
from specinfer.model.weights.interfaces import BlockWeights, Weights


def matrix_shape(
    which: MatrixSlot, config: ModelConfig, states: int, experts: Experts | None = None
) -> tuple[int, int]:
    """Return (outputs, inputs) of a matrix.

    Args:
        states: for EAGLE, number of the target's hidden states that fc reads; otherwise 0.
        experts: the layer's mixture; None: the layer is dense.
    """
    hidden, heads = config.hidden_size, config.heads * config.head_dim
    inner = config.intermediate_size if experts is None else experts.shared_size
    read = 2 * hidden if states else hidden  # EAGLE reads an embedding and a hidden state
    keys = config.kv_heads * config.head_dim
    return {
        MatrixSlot.QUERY: (heads * (1 + config.output_gate), read),
        MatrixSlot.KEY: (keys, read),
        MatrixSlot.VALUE: (keys, read),
        MatrixSlot.OUT: (hidden, heads),
        MatrixSlot.GATE: (inner, hidden),
        MatrixSlot.UP: (inner, hidden),
        MatrixSlot.DOWN: (hidden, inner),
        MatrixSlot.HEAD: (config.vocab_size, hidden),
        MatrixSlot.FC: (hidden, states * hidden),
    }[which]


def vector_shape(which: VectorSlot, config: ModelConfig) -> tuple[int, ...]:
    shapes: dict[VectorSlot, tuple[int, ...]] = {
        VectorSlot.QKV_BIAS: ((config.heads + 2 * config.kv_heads) * config.head_dim,),
        VectorSlot.UP_BIAS: (config.intermediate_size,),
        VectorSlot.Q_NORM: (config.head_dim * (config.heads if config.qk_norm_rows else 1),),
        VectorSlot.K_NORM: (config.head_dim * (config.kv_heads if config.qk_norm_rows else 1),),
        VectorSlot.POSITIONS: (config.max_positions, config.hidden_size),
    }
    return shapes.get(which, (config.hidden_size,))


_LAYER_MATRICES = (
    (MatrixSlot.QUERY, "self_attn.q_proj"),
    (MatrixSlot.KEY, "self_attn.k_proj"),
    (MatrixSlot.VALUE, "self_attn.v_proj"),
    (MatrixSlot.OUT, "self_attn.o_proj"),
)
_MLP_MATRICES = (
    (MatrixSlot.GATE, "mlp.gate_proj"),
    (MatrixSlot.UP, "mlp.up_proj"),
    (MatrixSlot.DOWN, "mlp.down_proj"),
)
_LAYER_BIASES = (
    (VectorSlot.QKV_BIAS, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    (VectorSlot.OUT_BIAS, ("self_attn.o_proj",)),
    (VectorSlot.UP_BIAS, ("mlp.up_proj",)),
    (VectorSlot.DOWN_BIAS, ("mlp.down_proj",)),
)


class WeightPacker:
    """Sets the weights of a model in the kernels."""

    def __init__(
        self,
        library: ctypes.CDLL,
        model: int,
        config: ModelConfig,
        dtype: str,
        weights: Weights,
        states: int = 0,
    ) -> None:
        """Prepare packing; `states` is as in `matrix_shape`."""
        self._library, self._model, self._states = library, model, states
        self._config, self._dtype, self._weights = config, dtype, weights

    def pack_layer(self, layer: int) -> None:
        prefix, config = f"model.layers.{layer}.", self._config
        if config.recurrent(layer):
            self._pack_recurrent(layer, f"{prefix}linear_attn.")
        if config.attends(layer):
            self._pack_attention(layer, prefix)
        if config.has_mlp:
            self._mlp(layer, prefix)
        for slot, factor in config.factors.items():
            self._library.si_set_factor(self._model, layer, MatrixSlot[slot.upper()], factor)
        for bias, names in _LAYER_BIASES:
            if f"{prefix}{names[0]}.bias" in self._weights:
                self._vector(layer, bias, [f"{prefix}{name}.bias" for name in names])
        if config.pre_norm:
            self._norm(layer, VectorSlot.INPUT_NORM, VectorSlot.INPUT_NORM_BIAS, f"{prefix}input_layernorm")
        if config.pre_norm and config.has_mlp:
            self._norm(
                layer, VectorSlot.POST_NORM, VectorSlot.POST_NORM_BIAS, f"{prefix}post_attention_layernorm"
            )
        if config.post_norm:
            self._vector(layer, VectorSlot.ATTENDED_NORM, [f"{prefix}post_self_attn_layernorm.weight"])
            self._vector(layer, VectorSlot.MLP_NORM, [f"{prefix}post_mlp_layernorm.weight"])

    def _pack_attention(self, layer: int, prefix: str) -> None:
        for which, name in _LAYER_MATRICES:
            self._matrix(layer, which, f"{prefix}{name}.weight")
        if self._config.sinks:
            self._vector(layer, VectorSlot.SINKS, [f"{prefix}{SINKS}"], wanted=(self._config.heads,))
        if self._config.qk_norm:
            self._vector(layer, VectorSlot.Q_NORM, [f"{prefix}self_attn.q_norm.weight"])
            self._vector(layer, VectorSlot.K_NORM, [f"{prefix}self_attn.k_norm.weight"])

    def _mlp(self, layer: int, prefix: str) -> None:
        experts = self._config.experts_of(layer)
        if experts is not None:
            self._mixture(layer, prefix, experts)
        if experts is None or experts.shared_size:
            for which, name in _MLP_MATRICES:
                if which is not MatrixSlot.GATE or self._config.gated:
                    self._matrix(layer, which, f"{prefix}{name}.weight")

    def _mixture(self, layer: int, prefix: str, experts: Experts) -> None:
        hidden = self._config.hidden_size
        shape = expert_shape(experts)
        self._library.si_set_experts(self._model, layer, ctypes.byref(shape))
        names = {f"{prefix}{ROUTER}": experts.count}
        if experts.gated_shared:
            names[f"{prefix}{SHARED_GATE}"] = 1
        for name, rows in names.items():
            self._check_shapes([name], (rows, hidden))
        router = np.concatenate([as_floats(self._read(name)) for name in names])
        self._library.si_set_matrix(self._model, layer, MatrixSlot.ROUTER, Storage.F32, address(router))
        for slot, name, wanted in expert_matrices(experts, hidden):
            self._shaped_matrix(layer, slot, f"{prefix}{name}.weight", wanted)
        if experts.biased:
            self._expert_biases(layer, prefix, experts)

    def _expert_biases(self, layer: int, prefix: str, experts: Experts) -> None:
        self._vector(layer, VectorSlot.ROUTER_BIAS, [f"{prefix}{ROUTER_BIAS}"], wanted=(experts.count,))
        for slot, part in EXPERT_BIASES:
            columns = self._config.hidden_size if part == "down_proj" else experts.intermediate_size
            names = [f"{prefix}mlp.experts.{number}.{part}.bias" for number in range(experts.count)]
            self._vector(layer, slot, names, wanted=(experts.count * columns,))

    def _pack_recurrent(self, layer: int, prefix: str) -> None:
        """Pack a recurrent layer's weights; the state gates stay unquantised."""
        shape, hidden = self._config.recurrent_shape, self._config.hidden_size
        assert shape is not None, "a model with recurrent layers has their shape"
        self._shaped_matrix(
            layer, MatrixSlot.CONVOLVED, f"{prefix}in_proj_qkv.weight", (shape.channels, hidden)
        )
        self._shaped_matrix(
            layer, MatrixSlot.OUTPUT_GATES, f"{prefix}in_proj_z.weight", (shape.values, hidden)
        )
        self._shaped_matrix(layer, MatrixSlot.STATE_OUT, f"{prefix}out_proj.weight", (hidden, shape.values))
        if shape.kind == "short_convolution":
            self._shaped_matrix(
                layer, MatrixSlot.STATE_GATES, f"{prefix}in_proj_x.weight", (shape.values, hidden)
            )
        else:
            self._pack_gates(layer, prefix, shape)
        self._check_shapes([f"{prefix}conv1d.weight"], (shape.channels, 1, shape.convolved))
        kernel = as_floats(self._read(f"{prefix}conv1d.weight"))[:, 0].T
        keys = shape.key_heads * shape.key_dim
        factors = np.repeat(np.array(shape.factors, np.float32), [keys, keys, shape.values])
        self._put(layer, VectorSlot.CONVOLUTION, kernel * factors)
        if f"{prefix}conv1d.bias" in self._weights:
            self._sized(layer, VectorSlot.CONVOLUTION_BIAS, f"{prefix}conv1d.bias", shape.channels)

    def _pack_gates(self, layer: int, prefix: str, shape: RecurrentShape) -> None:
        heads, space = shape.value_heads, shape.kind == "state_space"
        names = [f"{prefix}in_proj_{name}.weight" for name in ("a" if space else "ba")]
        self._check_shapes(names, (len(names) * heads, self._config.hidden_size))
        rows = stored_as(np.concatenate([as_floats(self._read(name)) for name in names]), self._dtype)
        storage = self._number_storage()
        self._library.si_set_matrix(self._model, layer, MatrixSlot.STATE_GATES, storage, address(rows))
        decays = f"{prefix}A_log"
        self._check_shapes([decays], (heads,))
        self._put(layer, VectorSlot.DECAY, -np.exp(as_floats(self._read(decays))))
        self._sized(layer, VectorSlot.TIME_BIAS, f"{prefix}dt_bias", heads)
        normed = shape.values if space else shape.value_dim
        if not space or f"{prefix}norm.weight" in self._weights:
            self._sized(layer, VectorSlot.GATED_NORM, f"{prefix}norm.weight", normed)
        if space:
            self._sized(layer, VectorSlot.SKIP, f"{prefix}D", heads)

    def _sized(self, layer: int, which: VectorSlot, name: str, size: int) -> None:
        self._check_shapes([name], (size,))
        self._put(layer, which, as_floats(self._read(name)))

    def pack_states(self) -> None:
        """Pack EAGLE's fc and the norm of its hidden states."""
        self._matrix(0, MatrixSlot.FC, "fc.weight")
        self._norm(0, VectorSlot.HIDDEN_NORM, VectorSlot.HIDDEN_NORM_BIAS, "hidden_norm")

    def pack_ends(self) -> Array:
        """Pack embeddings, final norm and head; return the embeddings.

        The kernels read the returned memory.
        """
        storage, embedding = self._stored(EMBEDDING, looked_up=True)
        rows, hidden = shape_of(self._weights, EMBEDDING)
        if (
            rows < self._config.vocab_size or hidden != self._config.hidden_size
        ):  # a draft has fewer tokens than rows
            wanted = [self._config.vocab_size, self._config.hidden_size]
            raise IncompatibleError(f"{EMBEDDING} has shape {[rows, hidden]}: must be at least {wanted}")
        self._library.si_set_embedding(self._model, storage, address(embedding))
        tied = self._config.tied_embeddings
        self._matrix(0, MatrixSlot.HEAD, EMBEDDING if tied else "lm_head.weight")
        scale = self._config.logit_scale
        self._norm(0, VectorSlot.FINAL_NORM, VectorSlot.FINAL_NORM_BIAS, "model.norm", scale)
        if self._config.learnt_positions:
            self._vector(0, VectorSlot.POSITIONS, [POSITIONS])
        return embedding

    def _norm(self, layer: int, weight: VectorSlot, bias: VectorSlot, name: str, scale: float = 1.0) -> None:
        self._vector(layer, weight, [f"{name}.weight"], scale)
        if self._config.layer_norm:
            self._vector(layer, bias, [f"{name}.bias"], scale)

    def _matrix(self, layer: int, which: MatrixSlot, name: str) -> None:
        experts = self._config.experts_of(layer)
        self._shaped_matrix(layer, which, name, matrix_shape(which, self._config, self._states, experts))

    def _shaped_matrix(self, layer: int, which: int, name: str, wanted: tuple[int, int]) -> None:
        self._check_shapes([name], wanted)
        storage, rows = self._stored(name)
        self._library.si_set_matrix(self._model, layer, which, storage, address(rows))

    def _stored(self, name: str, looked_up: bool = False) -> tuple[Storage, Array]:
        """Return a matrix in blocks, otherwise in the model's type.

        `looked_up`: the embeddings, for which only blocks of the file are used.
        """
        blocks = self._weights.blocks(name, looked_up) if isinstance(self._weights, BlockWeights) else None
        if blocks is not None:
            return Storage[blocks[0]], contiguous(blocks[1])
        return self._number_storage(), self._fetch(name)

    def _number_storage(self) -> Storage:
        return Storage.F32 if self._dtype == "float32" else Storage.BF16

    def _vector(
        self,
        layer: int,
        which: VectorSlot,
        names: Sequence[str],
        scale: float = 1.0,
        wanted: tuple[int, ...] | None = None,
    ) -> None:
        self._check_shapes(names, wanted or vector_shape(which, self._config))
        self._put(
            layer, which, np.concatenate([as_floats(self._read(name)) for name in names]) * np.float32(scale)
        )

    def _put(self, layer: int, which: VectorSlot, vector: NDArray[np.float32]) -> None:
        vector = np.ascontiguousarray(vector, np.float32)
        self._library.si_set_vector(self._model, layer, which, vector.ctypes.data, vector.size)

    def _check_shapes(self, names: Sequence[str], wanted: tuple[int, ...]) -> None:
        """Check shapes of present tensors that are concatenated along dimension 0."""
        shapes = [shape_of(self._weights, name) for name in names if name in self._weights]
        rows = sum(shape[0] for shape in shapes)
        if len(shapes) == len(names) and any((rows, *shape[1:]) != wanted for shape in shapes):
            raise IncompatibleError(
                f"{', '.join(names)}: shapes {[*map(list, shapes)]}: must be {list(wanted)} in total"
            )

    def _fetch(self, name: str) -> Array:
        return stored_as(self._read(name), self._dtype)

    def _read(self, name: str) -> Array:
        if name not in self._weights:
            raise IncompatibleError(f"the model's weights lack {name}")
        return self._weights[name]
