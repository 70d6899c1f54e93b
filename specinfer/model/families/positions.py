"""Reads rotary frequencies, windows and maximum context from `transformers`' configurations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from specinfer.errors import IncompatibleError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
"""Kinds of layers, as `layer_types` names them."""
NO_ROTARY = -1
"""Entry of `ModelConfig.layer_rotary` of layers without positions."""
UNBOUNDED = 1 << 20
"""Positions to which a model without positions is served."""
_KNOWN = ("default", "linear", "llama3", "yarn", "longrope")


def rotary(hf: Any, partial: bool = False) -> tuple[tuple[float, ...], float]:
    """Return rotary frequencies like `transformers`, and the scale of cosines.

    Its code of models is not loaded: that takes seconds, and 200 MB.

    Args:
        partial: whether the family can turn a part of each head only.

    Raises:
        IncompatibleError: if the frequencies depend on the input.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = _parameters(hf)
    kind = parameters.get("rope_type", "default")
    if kind not in _KNOWN:
        raise IncompatibleError(f"rope_type = {kind!r}: its frequencies depend on the input length")
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](hf, device="cpu")
        return tuple(inv_freq.to(torch.float32).tolist()), float(scale)
    head = head_width(hf)
    theta = _positive("rope_theta", parameters.get("rope_theta"))
    share = _positive("partial_rotary_factor", parameters.get("partial_rotary_factor", 1.0))
    size = int(head * (share if partial else 1.0))
    inv_freq = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    return tuple(inv_freq.tolist()), 1.0


def head_width(hf: Any) -> int:
    """Return the size of an attention head.

    Raises:
        IncompatibleError: if there are more heads than hidden numbers.
    """
    width: int = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    if width < 1:
        raise IncompatibleError(
            f"hidden_size = {hf.hidden_size}: below {hf.num_attention_heads} attention heads"
        )
    return width


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not value > 0:
        raise IncompatibleError(f"{name} = {value!r}: must be a number above 0")
    return float(value)


def fields_by_kind(hf: Any) -> dict[str, Any]:
    """Return rotary fields for windowed layers with separate frequencies.

    Raises:
        IncompatibleError: if those are scaled.
    """
    inv_freq, scale = _of_kind(hf, FULL)
    local, local_scale = _of_kind(hf, SLIDING)
    if local_scale != 1:
        raise IncompatibleError(f"rope_parameters.{SLIDING}: attention factor {local_scale}: must be 1")
    positions = {"inv_freq": inv_freq, "rotary_scale": scale}
    if local == inv_freq and scale == 1:
        return positions
    tables = tuple(int(kind == SLIDING) for kind in hf.layer_types)
    return positions | {"local_inv_freq": local, "layer_rotary": tables}


def _of_kind(hf: Any, kind: str) -> tuple[tuple[float, ...], float]:
    from transformers import LlamaConfig

    single = LlamaConfig(
        hidden_size=hf.hidden_size,
        num_attention_heads=hf.num_attention_heads,
        head_dim=head_width(hf),
        max_position_embeddings=hf.max_position_embeddings,
        rope_parameters=dict(_parameters(hf)[kind]),
    )
    return rotary(single)


def windows(hf: Any, kinds: Sequence[str] | None) -> tuple[int, ...]:
    """Return each layer's window, 0 for none; empty without any.

    Args:
        kinds: of the layers; None: all have the window.

    Raises:
        IncompatibleError: for an unknown kind of layer.
    """
    window = getattr(hf, "sliding_window", None)
    if not window or window >= hf.max_position_embeddings or not getattr(hf, "use_sliding_window", True):
        return ()
    kinds = [SLIDING] * hf.num_hidden_layers if kinds is None else kinds
    if unknown := [kind for kind in kinds if kind not in (FULL, SLIDING)]:
        raise IncompatibleError(f"layer_types: {unknown[0]!r}: supported are {FULL}, {SLIDING}")
    found = tuple(window if kind == SLIDING else 0 for kind in kinds)
    return found if any(found) else ()


def longest_text(text: Any) -> int:
    """Return the maximum exact context, independent of the pass.

    LongRoPE rotates all keys of a text differently as soon as it is longer than the original length, those in
    the cache too: such models are served up to there.

    Raises:
        IncompatibleError: if the configuration names none.
    """
    longest = getattr(text, "max_position_embeddings", None)
    if not longest:
        raise IncompatibleError(f"model_type = {text.model_type!r}: no max_position_embeddings")
    return min([int(longest), *_original_lengths(_parameters(text))])


def served_positions(text: Any) -> int:
    """Return the maximum context of models that may have no positions."""
    return longest_text(text) if getattr(text, "max_position_embeddings", None) else UNBOUNDED


def _original_lengths(ropes: Mapping[str, Any]) -> Iterator[int]:
    for rope in [ropes, *(value for value in ropes.values() if isinstance(value, dict))]:
        if rope.get("rope_type") == "longrope" and rope["short_factor"] != rope["long_factor"]:
            yield int(rope["original_max_position_embeddings"])


def _parameters(hf: Any) -> Mapping[str, Any]:
    return getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
