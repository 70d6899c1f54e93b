"""Describe the differences between families of decoders in one record.

A family's file has one `Family`; the registry (`specinfer.model.families`) lists them. Our decoder reads
tensors under Llama's names, with two more norms (those of GLM-4):

    post_self_attn_layernorm    of what attention adds to the hidden states
    post_mlp_layernorm          of what the MLP adds
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.families.positions import head_width, rotary
from specinfer.model.weights.gguf_files.metadata import GgufFile, Metadata

POSITIONS = "model.embed_positions.weight"
"""Name of the table of learnt positions."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """Shape of recurrent layers."""

    kind: str
    """One of delta_net, state_space and short_convolution."""
    key_heads: int
    """Groups of a state space; a short convolution has none."""
    value_heads: int
    key_dim: int
    value_dim: int
    convolved: int
    """Inputs that a convolution sees, the token's own included."""
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors on queries, keys and values before they are convolved."""

    @property
    def values(self) -> int:
        """Numbers of all heads' values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Numbers that are convolved: queries, keys and values, in this order."""
        return 2 * self.key_heads * self.key_dim + self.values


class HeadSizes(NamedTuple):
    """Attention heads of a model, its experts and recurrent layers."""

    query: int
    key_value: int
    size: int
    experts: int = 0
    recurrent: RecurrentShape | None = None


class TensorSource(NamedTuple):
    """Place of a tensor of ours in a checkpoint."""

    name: str
    pick: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Returns the wanted part; None: all.

    The part consists of rows, if the tensor may be a quantised matrix.
    """
    matrix: int | None = None
    """Number of the matrix in a stacked tensor; None: not stacked."""


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Layout of GGUF files of one architecture."""

    parts: dict[str, str]
    """Parts of a layer: name of `transformers`, name in the file."""
    config: Callable[[GgufFile], tuple[Any, Fields]]
    """Returns the class of the `transformers` configuration, and its additional fields."""
    paired: bool = False
    """True if rows of queries and keys are interleaved rotary pairs."""
    raised: bool = False
    """True if weights of norms are stored plus one."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Further tensors of a layer: name of `transformers`, name in the file."""
    further: dict[str, str] = field(default_factory=dict)
    """Additional parts of a layer that predicts further tokens."""
    top: Mapping[str, str] = field(default_factory=dict)
    """The same outside the layers."""
    layers: str = "model.layers"
    """Name of the layers in `transformers`."""
    attends: bool = True
    """False if no layer has attention."""
    undo: Callable[[Metadata, str, torch.Tensor, int], torch.Tensor | None] | None = None
    """Returns a tensor as `transformers` stores it.

    Its arguments are the metadata, the name in `transformers`, the stored tensor and the weights in a block. The last
    is 1 for a tensor of numbers. A quantised tensor has rows of bytes; None means that these cannot be reordered.
    """


@dataclass(frozen=True, slots=True)
class Family:
    """A family, or some that are close."""

    model_types: tuple[str, ...]
    fields: Callable[[Any], Fields]
    """Translates a configuration of `transformers` into fields of `ModelConfig`."""
    rename: Callable[[HeadSizes, str], dict[str, TensorSource]] | None = None
    """Maps a checkpoint's tensor to our tensors; None: same names."""
    gguf: Mapping[str, GgufLayout] = field(default_factory=dict)
    """GGUF layouts by architecture."""
    joined: Callable[[Any, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    """Joins tensors of a GGUF file as `transformers` stores them.

    None: nothing is to be joined. Its arguments are the configuration of `transformers` and all tensors.
    """
    counts: tuple[str, ...] = ()
    """Fields of a configuration that must be whole numbers above 0.

    Those of every family are checked in addition.
    """
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Fields that must be numbers other than 0.

    The value is the length of a list, or 0 for one number.
    """

    def check_fields(self, values: Mapping[str, Any]) -> None:
        """Check the fields that a configuration has.

        `null` is a value like others, except where `transformers` computes the value from other fields.

        Raises:
            IncompatibleError: naming a field and its value.
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
"""Values for which `transformers` computes a count."""
_LARGEST = 1e30
"""Bound of numbers in a configuration."""


def _check_numbers(name: str, value: Any, length: int) -> None:
    numbers = value if length and isinstance(value, (list, tuple)) else [value]
    right = all(type(number) in (int, float) and 0 < abs(number) < _LARGEST for number in numbers)
    if right and len(numbers) == (length or 1):
        return
    if length and value is None:  # transformers takes ones
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
"""Parts of a layer like Llama's."""
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Norms after attention and MLP: name of `transformers`, name in GGUF files."""


def llama_fields(hf: Any, positions: Fields | None = None) -> Fields:
    """Return the fields for grouped-query attention, rotary positions, RMS norm, gated MLP.

    `positions` are the fields about rotary frequencies, where they are not those of Llama.
    """
    if getattr(hf, "mlp_bias", False):
        raise IncompatibleError("mlp_bias = True: not supported")
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
    """Return a function that picks one of some equal parts of rows."""
    return lambda rows: rows.chunk(parts)[which]


def replaced(name: str, parts: Mapping[str, str]) -> str:
    """Return a name with some of its parts replaced, each once."""
    for old, new in parts.items():
        if old in name:
            return name.replace(old, new)
    return name
