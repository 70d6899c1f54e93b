"""Describes a family of decoders: its configuration and its tensors' names.

Each family's file has a `Family`; `specinfer.model.families` lists them. Our decoder reads tensors under Llama's
names, and two more norms under GLM-4's names:

    post_self_attn_layernorm    norm of attention's output
    post_mlp_layernorm          norm of the MLP's output
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specinfer.errors import IncompatibleError
from specinfer.model.families.positions import head_width, rotary
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.keys import Metadata
from specinfer.model.weights.gguf_files.metadata import GgufFile

POSITIONS = "model.embed_positions.weight"
"""Name of the table of learnt position embeddings."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """Kind and sizes of recurrent layers."""

    kind: str
    """One of "delta_net", "state_space" and "short_convolution"."""
    key_heads: int
    """Number of key heads (state spaces: groups); 0 for short convolutions."""
    value_heads: int
    key_dim: int
    value_dim: int
    convolved: int
    """Number of tokens that a convolution reads, the present one included."""
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors on queries, keys and values before the convolution."""

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Number of channels of the convolution: queries, keys, then values."""
        return 2 * self.key_heads * self.key_dim + self.values


class HeadSizes(NamedTuple):
    """Numbers and size of attention heads, number of experts, recurrent layers."""

    query: int
    key_value: int
    size: int
    experts: int = 0
    recurrent: RecurrentShape | None = None


class TensorSource(NamedTuple):
    """Tensor of a checkpoint from which one of our tensors is made."""

    name: str
    pick: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Function from the checkpoint's tensor to ours; None: both are equal.

    A part of a quantised tensor must consist of whole rows.
    """
    matrix: int | None = None
    """Index of our matrix in a stack of matrices; None: no stack."""


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Names and storage of the tensors in GGUF files of one architecture."""

    parts: dict[str, str]
    """Modules of a layer: name in `transformers` -> name in the file."""
    config: Callable[[GgufFile], tuple[Any, Fields]]
    """Returns the configuration's class in `transformers`, and fields beyond the common ones."""
    interleaved_rope: bool = False
    """True if query and key rows are stored as interleaved rotary pairs."""
    norms_plus_one: bool = False
    """True if files store norms' weights w as 1 + w."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Other tensors of a layer: name in `transformers` -> name in the file."""
    mtp_parts: dict[str, str] = field(default_factory=dict)
    """Additional modules of multi-token prediction: name in `transformers` -> in the file."""
    top: Mapping[str, str] = field(default_factory=dict)
    """Tensors outside the layers: name in `transformers` -> name in the file."""
    layers: str = "model.layers"
    """Prefix of the layers in `transformers`."""
    attends: bool = True
    """False if no layer has attention."""
    undo_converter: Callable[[Metadata, str, torch.Tensor, int], torch.Tensor | None] | None = None
    """Undoes a converter's change of a tensor; None: nothing was changed.

    Arguments: metadata, name in `transformers`, stored tensor, number of weights in a block (1 if unquantised). Rows of
    a quantised tensor are bytes; the result is None if they cannot be reordered.
    """


@dataclass(frozen=True, slots=True)
class Family:
    """Describes one family, or several families with the same layers."""

    model_types: tuple[str, ...]
    fields: Callable[[Any], Fields]
    """Returns the fields of `ModelConfig`, from a `transformers` configuration."""
    rename: Callable[[HeadSizes, str], dict[str, TensorSource]] | None = None
    """Returns our tensors that come from a checkpoint's tensor; None: equal names."""
    gguf: Mapping[str, GgufLayout] = field(default_factory=dict)
    to_transformers: Callable[[Any, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    """Converts a GGUF file's tensors to those of `transformers`; None: no change.

    Arguments: the `transformers` configuration, and all tensors by name.
    """
    counts: tuple[str, ...] = ()
    """Names of fields that must be whole numbers above 0, besides `_COUNTS`."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Names of fields that must be numbers other than 0.

    Value: 0 for a single number, otherwise the length of a list of numbers.
    """

    def check_fields(self, values: Mapping[str, Any]) -> None:
        """Check the fields of `counts` and `numbers` in a configuration.

        A field may be None if `transformers` computes it from other fields.
        """
        for name in (*_COUNTS, *self.counts):
            value = values.get(name, 1)
            computed = name in _COMPUTED and value == _COMPUTED[name]
            if not computed and (type(value) is not int or value <= 0):
                raise IncompatibleError(f"{name} = {value!r}: must be a whole number above 0")
        for name, length in self.numbers.items():
            if name in values:
                _check_numbers(name, values[name], length)


_COUNTS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim"),
)
_COMPUTED = {
    **dict.fromkeys(("num_key_value_heads", "head_dim", "mamba_d_ssm"), None),
    "mamba_d_head": "auto",
}
"""Counts that `transformers` computes if they have this value."""
_LARGEST = 1e30
"""Limit of numbers in a configuration: larger ones are refused."""


def _check_numbers(name: str, value: Any, length: int) -> None:
    numbers = value if length and isinstance(value, (list, tuple)) else [value]
    right = all(type(number) in (int, float) and 0 < abs(number) < _LARGEST for number in numbers)
    if right and len(numbers) == (length or 1):
        return
    if length and value is None:  # transformers then uses ones
        return
    wanted = f"a list of {length} numbers" if length else "a number"
    raise IncompatibleError(f"{name} = {value!r}: must be {wanted} other than 0")


GGUF_PARTS = {
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
"""GGUF module names of layers like Llama's, by name in `transformers`."""
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""GGUF names of norms after attention and MLP, by name in `transformers`."""


def llama_fields(hf: Any, positions: Fields | None = None) -> Fields:
    """Return fields of models like Llama: grouped-query attention, RMS norms, gated MLP.

    `positions` are the rotary fields; None: read them from the configuration.
    """
    if getattr(hf, "mlp_bias", False):
        raise IncompatibleError("mlp_bias = True: must be False")
    size = getattr(hf, "intermediate_size", None)
    inner = size or getattr(hf, "moe_intermediate_size", None)
    if inner is None:
        raise IncompatibleError(f"intermediate_size = {size!r}: must be a whole number above 0")
    if not positions:
        inv_freq, scale = rotary(hf)
        positions = {"inv_freq": inv_freq, "rotary_scale": scale}
    return positions | {
        "intermediate_size": inner,
        "kv_heads": getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads,
        "head_dim": head_width(hf),
        "norm_eps": hf.rms_norm_eps,
        "activation": getattr(hf, "hidden_activation", None) or hf.hidden_act,
    }


def nth_part(which: int, parts: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns one of `parts` equal groups of rows."""
    return lambda rows: rows.chunk(parts)[which]


def replaced(name: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        if old in name:
            return name.replace(old, new)
    return name
