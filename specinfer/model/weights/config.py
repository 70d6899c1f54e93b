"""Configuration of our own decoder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.families.base import RecurrentShape
from specinfer.model.families.experts import Experts

ACTIVATIONS = ("silu", "gelu", "relu", "gelu_tanh")
"""Activations in the order of the kernels (native/csrc/model.h)."""
_SHAPE = {
    "layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
"""Fields that parts of a model may change, and their `config.json` names."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder; families differ in the fields with defaults."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    activation: str
    tied_embeddings: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    inv_freq: tuple[float, ...] = ()
    """[R/2] rotary frequencies of a head's first R dimensions.

    None: learnt positions, or no positions if `layer_rotary` has none.
    """
    rotary_scale: float = 1.0
    """Factor on cos and sin (YaRN's attention scaling; 1 otherwise)."""
    layer_norm: bool = False
    """True for norms by mean and variance, with bias; False: RMS."""
    gated: bool = True
    """True: the MLP is `down(act(gate) * up)`; False: `down(act(up))`."""
    parallel: bool = False
    """True if attention and MLP read the same hidden states."""
    pre_norm: bool = True
    """True if what attention and MLP read is normed."""
    post_norm: bool = False
    """True if what attention and MLP add is normed."""
    qk_norm_rows: bool = False
    """True if `qk_norm` is over all heads together, not each alone."""
    embedding_scale: float = 1.0
    """Factor on embeddings, rounded to the type that the model runs in."""
    attention_scale: float = 0.0
    """Factor on attention scores; 0: one over the root of `head_dim`."""
    residual_scale: float = 1.0
    """Factor on what attention and MLP add."""
    logit_scale: float = 1.0
    """Factor on logits."""
    score_cap: float = 0.0
    """Bound c of attention scores s: `c * tanh(s / c)`; 0: none."""
    logit_cap: float = 0.0
    """The same for logits."""
    qkv_bound: float = 0.0
    """Bound of the magnitude of queries, keys and values; 0: none."""
    windows: tuple[int, ...] = ()
    """Positions that each layer looks back; 0: all.

    Empty: all layers see all positions.
    """
    layer_rotary: tuple[int, ...] = ()
    """Frequencies of each layer; empty: `inv_freq` for all.

    NO_ROTARY: none; 0: `inv_freq`; 1: `local_inv_freq`.
    """
    local_inv_freq: tuple[float, ...] = ()
    """Other frequencies, without `rotary_scale`."""
    sinks: bool = False
    """True if every head's softmax has an extra score without a value."""
    experts: Experts | None = None
    """Mixture of experts; None: all layers are dense."""
    recurrent_layers: tuple[bool, ...] = ()
    """True for recurrent layers; empty: all layers attend."""
    recurrent_shape: RecurrentShape | None = None
    """Shape of recurrent layers."""
    recurrent_attends: bool = False
    """True if recurrent layers attend as well."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Factors on what matrices of all layers make.

    Keys are gate, down, out, output_gates, state_gates and state_out (slots of the kernels).
    """
    output_gate: bool = False
    """True if query rows alternate by head with rows of output gates."""

    @property
    def rotary_dim(self) -> int:
        """Rotary dimensions of a head, its first ones."""
        return 2 * len(self.inv_freq)

    @property
    def learnt_positions(self) -> bool:
        """True if embeddings of positions are added to those of tokens."""
        return not (self.inv_freq or self.layer_rotary)

    @property
    def has_mlp(self) -> bool:
        """True if layers have an MLP or experts."""
        return bool(self.intermediate_size) or self.experts is not None

    @property
    def score_scale(self) -> float:
        """Factor on attention scores."""
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> int:
        """Return how many positions a layer looks back; 0: all."""
        return self.windows[layer] if self.windows else 0

    def rotary_of(self, layer: int) -> int:
        """Return the frequencies of a layer, as `layer_rotary` numbers them."""
        return self.layer_rotary[layer] if self.layer_rotary else 0

    def experts_of(self, layer: int) -> Experts | None:
        """Return the mixture of a layer; None for a dense one."""
        experts = self.experts
        return None if experts is None or layer in experts.dense_layers else experts

    def recurrent(self, layer: int) -> bool:
        """Return whether a layer keeps a state."""
        return bool(self.recurrent_layers) and self.recurrent_layers[layer]

    def attends(self, layer: int) -> bool:
        """Return whether a layer has attention."""
        return self.recurrent_attends or not self.recurrent(layer)

    @property
    def kv_layers(self) -> int:
        """Number of layers that attend."""
        return sum(map(self.attends, range(self.layers)))

    def place(self, layer: int) -> int:
        """Return the number of a layer among those of its kind.

        Where recurrent layers attend, all layers are both.
        """
        if self.recurrent_attends:
            return layer
        before = sum(self.recurrent_layers[:layer])
        return before if self.recurrent(layer) else layer - before

    def tensors_of(self, layer: int) -> tuple[bool, bool]:
        """Return whether a layer is recurrent, and whether it is dense.

        Layers that agree in both have the same tensors.
        """
        return self.recurrent(layer), self.experts_of(layer) is None

    @property
    def varied_layers(self) -> int:
        """Smallest number of first layers with at least one of every kind."""
        kinds = [
            (self.window(layer), self.rotary_of(layer), *self.tensors_of(layer))
            for layer in range(self.layers)
        ]
        return 1 + max(kinds.index(kind) for kind in kinds)

    def first_layers(self, count: int) -> "ModelConfig":
        """Return the same model cut after `count` layers."""
        if not 0 < count <= self.layers:
            raise SettingError("layers", count, f"the model has {self.layers} layers")
        return replace(
            self,
            layers=count,
            windows=self.windows[:count],
            layer_rotary=self.layer_rotary[:count],
            recurrent_layers=self.recurrent_layers[:count],
        )

    def like_llama(self, what: str) -> "ModelConfig":
        """Return the model for parts limited to layers like Llama's.

        It is served up to its window.

        Args:
            what: name of the part, for the error.

        Raises:
            IncompatibleError: naming what the model has beyond that.
        """
        if beyond := [name for name, has in self._beyond_llama() if has]:
            raise IncompatibleError(
                f"model_type = {self.family!r}: {what}: {', '.join(beyond)}: not supported"
            )
        windows = [window for window in self.windows if window]
        return replace(self, windows=(), max_positions=min([self.max_positions, *windows]))

    def _beyond_llama(self) -> Iterator[tuple[str, bool]]:
        yield "norms behind attention and MLP", self.post_norm or not self.pre_norm
        yield "norms of whole rows of queries and keys", self.qk_norm_rows
        factors = (self.embedding_scale, self.residual_scale, self.logit_scale)
        yield "factors on embeddings, residuals or logits", any(factor != 1 for factor in factors)
        yield "factors on what matrices make", bool(self.factors)
        yield "a factor on attention scores", self.score_scale != self.head_dim**-0.5
        yield "bounds of queries, keys and values", bool(self.qkv_bound)
        yield "soft caps", bool(self.score_cap or self.logit_cap)
        yield "rotary positions by layer", bool(self.layer_rotary)
        yield "attention sinks", self.sinks
        yield "a mixture of experts", self.experts is not None
        yield "recurrent layers", any(self.recurrent_layers)
        yield "gates of attention", self.output_gate


def shape_fields(config: ModelConfig, original: ModelConfig) -> dict[str, int]:
    """Return `config.json` fields of a model that differ from the original's.

    The model is made of parts of `original`.
    """
    fields = {
        name: getattr(config, field_name)
        for field_name, name in _SHAPE.items()
        if getattr(config, field_name) != getattr(original, field_name)
    }
    if config.heads != original.heads:  # `transformers` would divide the hidden size by the heads
        fields["head_dim"] = config.head_dim
    return fields


def with_shape(original: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    """Return `original` with these fields of a part's `config.json`.

    The fields may be some of those in the file.
    """
    shape = {field_name: fields[name] for field_name, name in _SHAPE.items() if fields.get(name) is not None}
    return replace(original, **shape)
