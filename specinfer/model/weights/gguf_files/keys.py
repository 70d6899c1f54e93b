"""Keys of a GGUF file's metadata.

Each key of the architecture is checked and used, or refused.
"""

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from specinfer.errors import IncompatibleError

_LARGEST_COUNT = 1 << 31
_LARGEST_NUMBER = 1e30
_OFF = """
    attention.clamp_kqv attention.max_alibi_bias attention.scale attention.shared_kv_layers attention.sliding_window
    attention.sliding_window_pattern attention.temperature_length attention.temperature_scale attn_logit_softcapping
    final_logit_softcapping router_logit_softcapping embedding_length_per_layer_input rescale_every_n_layers
    rope.scaling.yarn_log_multiplier expert_count expert_used_count expert_shared_count expert_weights_norm
    interleave_moe_layer_step leading_dense_block_count moe_every_n_layers ssm.dt_b_c_rms swin_norm
    use_parallel_residual
"""
_ONCE = """
    logit_scale residual_scale embedding_scale attention.output_scale expert_weights_scale expert_group_count
    expert_group_used_count expert_gating_func rope.scaling.attn_factor rope.scaling.yarn_attn_factor
"""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(_OFF.split(), (0,)),
    **dict.fromkeys(_ONCE.split(), (0, 1)),  # 0 counts as missing in llama.cpp
    "pooling_type": (0, -1, 0xFFFFFFFF),
    "tensor_data_layout": ("reference", "Meta AI original pth"),
}
"""Keys -> values without effect, if the family does not read the key."""


class Metadata:
    """Metadata of a GGUF file; records which values were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check that the file contains a model."""
        self._values, self._used = values, set[str]()
        self.architecture = str(values.get("general.architecture"))
        kind = values.get("general.type", "model")
        if kind != "model":
            raise IncompatibleError(f"GGUF: general.type = {kind!r}: must be 'model'")

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._values

    def get(self, name: str, default: Any = None) -> Any:
        key = f"{self.architecture}.{name}"
        self._used.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise IncompatibleError(f"the GGUF file lacks the key {key}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """Return a key's value, which must be a whole number above 0."""
        whole = whole_number(self.get(name, default))
        if not whole:
            raise self.refused(name, "must be a whole number above 0")
        return whole

    def optional_count(self, name: str) -> int:
        """Return a key's whole number; 0 if it is missing."""
        return self.count(name) if self.get(name, 0) else 0

    def number(self, name: str, default: float | None = None, zero: bool = False) -> float:
        """Return a key's value, a number above 0, or 0 if `zero`."""
        value = self.get(name, default)
        right = isinstance(value, Real) and not isinstance(value, bool)
        if not right or not (0 <= value < _LARGEST_NUMBER) or not (value or zero):
            raise self.refused(name, f"must be a finite number {'of at least' if zero else 'above'} 0")
        return float(value)

    def heads(self) -> tuple[int, int]:
        """Return the numbers of heads, and of heads of keys."""
        heads = self.same_count("attention.head_count")
        kv_heads = self.same_count("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise self.refused("attention.head_count_kv", f"must divide {heads}, the heads")
        return heads, kv_heads

    def same_count(self, name: str, default: int | None = None) -> int:
        """Return a number that must be equal in all layers with attention.

        A file stores one number, or a list with one per layer.
        """
        value = self.get(name, default)
        if not isinstance(value, (list, tuple)):
            return self.count(name, default)
        values = {whole_number(one) for one in value} - {0}  # without layers that have no attention
        if len(values) != 1 or None in values:
            raise self.refused(name, "must be a whole number above 0, equal in all layers")
        return int(values.pop() or 0)

    def layer_values(self, name: str) -> list[Any]:
        """Return a key's value, which must be a list, one per layer."""
        values = self.get(name)
        if not isinstance(values, list) or len(values) != self.layers:
            raise self.refused(name, f"must have {self.layers} values, one per layer")
        return values

    def refused(self, name: str, reason: str) -> IncompatibleError:
        """Return the error of a key of the architecture, with its value."""
        key = f"{self.architecture}.{name}"
        return IncompatibleError(f"GGUF: {key} = {self._values.get(key)!r:.80}: {reason}")

    @property
    def layers(self) -> int:
        """Number of layers, without layers for multi-token prediction."""
        return self.count("block_count") - self.optional_count("nextn_predict_layers")

    def other(self, key: str) -> Any:
        """Return the value of a full key, such as `general.name`, or None."""
        return self._values.get(key)

    def check_used(self) -> None:
        """Refuse unread keys of the architecture, except neutral values.

        Keys with any other prefix are notes by the file's author.
        """
        prefix = f"{self.architecture}."
        for key in [key for key in self._values if key not in self._used]:
            if key.startswith(prefix) and not self._is_neutral(key.removeprefix(prefix), self._values[key]):
                raise self.refused(key.removeprefix(prefix), "is not supported")

    def _is_neutral(self, name: str, value: Any) -> bool:
        """Return whether an unread key has a value that changes nothing."""
        if name == "attention.scale" and isinstance(value, float) and value:
            return math.isclose(value, self.head_dim() ** -0.5, rel_tol=1e-6)
        values = value if isinstance(value, list) and value else [value]
        return all(one in _NEUTRAL.get(name, ()) for one in values)

    def head_dim(self) -> int:
        heads, _ = self.heads()
        return self.count("attention.key_length", self.count("embedding_length") // heads)


def whole_number(value: Any) -> int | None:
    """Return a whole number of at least 0; None for other values."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return whole if 0 <= (whole := int(value)) < _LARGEST_COUNT else None


def checked_id(key: str, get: Callable[[str], Any], size: int) -> int | None:
    """Return a token id of the metadata; None if it is missing."""
    if (value := get(key)) is None:
        return None
    token = whole_number(value)
    if token is None or token >= size:
        raise IncompatibleError(f"GGUF: {key} = {value!r:.80}: must be from 0 to {size - 1}, a token's id")
    return token
