"""Defines the configuration of our decoder."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.families.base import RecurrentShape
from specinfer.model.families.experts import Experts

ACTIVATIONS = ("silu", "gelu", "relu", "gelu_tanh")
"""Activations, in the order of the kernels' numbers (native/csrc/model.h)."""
_SHAPE = {
    "layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
"""Fields that a draft's layers may change -> their names in `config.json`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and options of a decoder; the defaults are Llama's."""

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

    Empty: learnt positions, or no positions if no layer in `layer_rotary` has any.
    """
    rotary_scale: float = 1.0
    """Factor on cosines and sines: YaRN's attention scaling, otherwise 1."""
    layer_norm: bool = False
    """True: norms by mean and variance, with bias. False: RMS norms."""
    gated: bool = True
    """True: the MLP is `down(act(gate) * up)`; False: `down(act(up))`."""
    parallel: bool = False
    """True if the MLP reads the layer's input, not attention's result."""
    pre_norm: bool = True
    """True if the inputs of attention and MLP are normed."""
    post_norm: bool = False
    """True if the outputs of attention and MLP are normed."""
    qk_norm_rows: bool = False
    """True if `qk_norm` normalises all heads together; False: each head by itself."""
    embedding_scale: float = 1.0
    """Factor on embeddings; the kernels round it to the model's type."""
    attention_scale: float = 0.0
    """Factor on attention scores; 0: `head_dim ** -0.5`."""
    residual_scale: float = 1.0
    """Factor on the outputs of attention and MLP."""
    logit_scale: float = 1.0
    score_cap: float = 0.0
    """Bound c of attention scores s: `c * tanh(s / c)`; 0: none."""
    logit_cap: float = 0.0
    """Bound c of logits x: `c * tanh(x / c)`; 0: none."""
    qkv_bound: float = 0.0
    """Maximum magnitude of queries, keys and values; 0: none."""
    windows: tuple[int, ...] = ()
    """Each layer's sliding window in tokens, or 0; empty: no windows."""
    layer_rotary: tuple[int, ...] = ()
    """Rotary frequencies of each layer: 0: `inv_freq`, 1: `local_inv_freq`.

    NO_ROTARY: the layer has no positions. Empty: all layers have `inv_freq`.
    """
    local_inv_freq: tuple[float, ...] = ()
    """Second list of frequencies (Gemma 3's windowed layers), without `rotary_scale`."""
    sinks: bool = False
    """True if each head's softmax includes a learnt score without a value."""
    experts: Experts | None = None
    """Mixture of experts; None: all MLPs are dense."""
    recurrent_layers: tuple[bool, ...] = ()
    """True for each recurrent layer; empty: no layer is recurrent."""
    recurrent_shape: RecurrentShape | None = None
    """Kind and sizes of recurrent layers; None: there are none."""
    recurrent_attends: bool = False
    """True if recurrent layers have attention, too (Falcon H1)."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Factors on the outputs of matrices, in all layers.

    Keys are gate, down, out, output_gates, state_gates and state_out: names of `MatrixSlot`.
    """
    output_gate: bool = False
    """True if query rows contain gates for attention's output, alternating by head."""

    @property
    def rotary_dim(self) -> int:
        """Number of rotary dimensions, the first of a head."""
        return 2 * len(self.inv_freq)

    @property
    def learnt_positions(self) -> bool:
        """True if position embeddings are added to token embeddings."""
        return not (self.inv_freq or self.layer_rotary)

    @property
    def has_mlp(self) -> bool:
        return bool(self.intermediate_size) or self.experts is not None

    @property
    def score_scale(self) -> float:
        """Factor on attention scores, with its default applied."""
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> int:
        """Return a layer's sliding window in tokens; 0: no window."""
        return self.windows[layer] if self.windows else 0

    def rotary_of(self, layer: int) -> int:
        """Return the entry of `layer_rotary` for a layer; 0 by default."""
        return self.layer_rotary[layer] if self.layer_rotary else 0

    def experts_of(self, layer: int) -> Experts | None:
        """Return a layer's mixture of experts; None: the layer is dense."""
        experts = self.experts
        return None if experts is None or layer in experts.dense_layers else experts

    def recurrent(self, layer: int) -> bool:
        return bool(self.recurrent_layers) and self.recurrent_layers[layer]

    def attends(self, layer: int) -> bool:
        return self.recurrent_attends or not self.recurrent(layer)

    @property
    def kv_layers(self) -> int:
        """Number of layers with attention, which have keys and values."""
        return sum(map(self.attends, range(self.layers)))

    def cache_index(self, layer: int) -> int:
        """Return the index of the layer's KV cache, or of its recurrent state."""
        if self.recurrent_attends:
            return layer
        before = sum(self.recurrent_layers[:layer])
        return before if self.recurrent(layer) else layer - before

    def tensors_of(self, layer: int) -> tuple[bool, bool]:
        """Return whether a layer is recurrent, and whether its MLP is dense.

        Layers with equal results have tensors of the same names.
        """
        return self.recurrent(layer), self.experts_of(layer) is None

    @property
    def varied_layers(self) -> int:
        """Minimum number of first layers that include every kind of layer."""
        kinds = [
            (self.window(layer), self.rotary_of(layer), *self.tensors_of(layer))
            for layer in range(self.layers)
        ]
        return 1 + max(kinds.index(kind) for kind in kinds)

    def first_layers(self, count: int) -> "ModelConfig":
        if not 0 < count <= self.layers:
            raise SettingError("layers", count, f"must be from 1 to {self.layers}, the model's layers")
        return replace(
            self,
            layers=count,
            windows=self.windows[:count],
            layer_rotary=self.layer_rotary[:count],
            recurrent_layers=self.recurrent_layers[:count],
        )

    def like_llama(self, what: str) -> "ModelConfig":
        """Return the configuration for parts that support only layers like Llama's.

        Such parts know no sliding windows: the maximum context is reduced to the window.

        Args:
            what: name of the part, for the error.
        """
        if beyond := self.beyond_llama:
            raise self._refusal(what, beyond)
        return self.up_to_window()

    def up_to_window(self) -> "ModelConfig":
        """Return the configuration without sliding windows, for contexts that fit in them."""
        windows = [window for window in self.windows if window]
        return replace(self, windows=(), max_positions=min([self.max_positions, *windows]))

    @property
    def beyond_llama(self) -> str:
        """Names of features, apart from windows, that Llama's layers do not have."""
        return ", ".join(name for name, has in self._beyond_llama() if has)

    def _refusal(self, what: str, parts: str) -> IncompatibleError:
        return IncompatibleError(f"model_type = {self.family!r}: {what}: {parts}: not supported")

    def draft_layer(self) -> "ModelConfig":
        """Return the configuration of an EAGLE layer for this target: like its last layer.

        The layer has no window. It norms the embeddings that it reads, so their factor has no effect. Factors on
        residuals and logits are in the draft's tensors; the soft caps are the target's.
        """
        unlike_llama = self.layer_norm or self.parallel or self.learnt_positions
        beyond = {
            "norms by mean and variance, or learnt positions": unlike_llama,
            "a mixture of experts": self.experts is not None,
            "recurrent layers": any(self.recurrent_layers),
        }
        if any(beyond.values()):
            raise self._refusal("an EAGLE layer", ", ".join(name for name, has in beyond.items() if has))
        local = self.rotary_of(self.layers - 1) > 0
        return replace(
            self,
            family="llama",  # of the names of its tensors
            layers=1,
            tied_embeddings=False,
            pre_norm=True,
            embedding_scale=1.0,
            residual_scale=1.0,
            logit_scale=1.0,
            windows=(),
            layer_rotary=(),
            inv_freq=self.local_inv_freq if local else self.inv_freq,
            local_inv_freq=(),
            rotary_scale=1.0 if local else self.rotary_scale,
        )

    def _beyond_llama(self) -> Iterator[tuple[str, bool]]:
        yield "norms after attention and MLP", self.post_norm or not self.pre_norm
        yield "norms of whole rows of queries and keys", self.qk_norm_rows
        factors = (self.embedding_scale, self.residual_scale, self.logit_scale)
        yield "factors on embeddings, residuals or logits", any(factor != 1 for factor in factors)
        yield "factors on outputs of matrices", bool(self.factors)
        yield "a factor on attention scores", self.score_scale != self.head_dim**-0.5
        yield "bounds of queries, keys and values", bool(self.qkv_bound)
        yield "soft caps", bool(self.score_cap or self.logit_cap)
        yield "rotary positions by layer", bool(self.layer_rotary)
        yield "attention sinks", self.sinks
        yield "a mixture of experts", self.experts is not None
        yield "recurrent layers", any(self.recurrent_layers)
        yield "gates of attention", self.output_gate


def shape_fields(config: ModelConfig, original: ModelConfig) -> dict[str, int]:
    """Return `config.json` fields in which a draft's layers differ from the target's."""
    fields = {
        name: getattr(config, field_name)
        for field_name, name in _SHAPE.items()
        if getattr(config, field_name) != getattr(original, field_name)
    }
    if config.heads != original.heads:  # `transformers` would divide the hidden size by the heads
        fields["head_dim"] = config.head_dim
    return fields


def with_shape(original: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    """Return the target's configuration, changed by fields of a draft's `config.json`.

    Missing fields are equal to the target's.
    """
    shape = {field_name: fields[name] for field_name, name in _SHAPE.items() if fields.get(name) is not None}
    return replace(original, **shape)


def shown_config(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as values of JSON."""
    fields = asdict(config)
    if config.experts is not None:
        fields["experts"]["dense_layers"] = sorted(config.experts.dense_layers)
    return fields | {"factors": dict(config.factors)}


def read_config(fields: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that `shown_config` converted."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    if (experts := values["experts"]) is not None:
        values["experts"] = Experts(**experts | {"dense_layers": frozenset(experts["dense_layers"])})
    if (shape := values["recurrent_shape"]) is not None:
        values["recurrent_shape"] = RecurrentShape(**shape | {"factors": tuple(shape["factors"])})
    return ModelConfig(**values)
