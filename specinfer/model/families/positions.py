"""Reads rotary frequencies, windows and maximum context from `transformers`' configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.lazy_torch import torch

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
"""Kinds of layers in `layer_types`."""
NO_ROTARY = -1
"""Value in `ModelConfig.layer_rotary` for layers without rotary positions."""
UNBOUNDED = 1 << 20
"""Maximum context in tokens, for models without positions (state spaces)."""
_KNOWN = ("default", "linear", "llama3", "yarn", "longrope")


def rotary(hf: Any, partial: bool = False) -> tuple[tuple[float, ...], float]:
    """Return rotary frequencies as in `transformers`, and the scale of cosines.

    The models' own code is not loaded, as it takes seconds and 200 MB.

    Args:
        partial: True if the family may rotate only a part of each head.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = _parameters(hf)
    kind = parameters.get("rope_type", "default")
    if kind not in _KNOWN:
        raise IncompatibleError(f"rope_type = {kind!r}: supported are {', '.join(_KNOWN)}")
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
    width: int = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    if width < 1:
        raise IncompatibleError(
            f"hidden_size = {hf.hidden_size}: must be at least num_attention_heads = {hf.num_attention_heads}"
        )
    return width


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not value > 0:
        raise IncompatibleError(f"{name} = {value!r}: must be a number above 0")
    return float(value)


def fields_by_kind(hf: Any) -> dict[str, Any]:
    """Return rotary fields of models whose windowed layers have other frequencies."""
    inv_freq, scale = _of_kind(hf, FULL)
    local, local_scale = _of_kind(hf, SLIDING)
    if local_scale != 1:
        raise IncompatibleError(f"rope_parameters.{SLIDING}: attention factor = {local_scale}: must be 1")
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
    """Return each layer's window in tokens; 0: none; (): no windows.

    Args:
        kinds: `layer_types`; None: all layers have the window.
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
    """Return the maximum context length at which cached keys stay valid.

    LongRoPE rotates all keys differently, even cached ones, once a context exceeds the original length. So such models
    are served up to that length.
    """
    longest = getattr(text, "max_position_embeddings", None)
    if not longest:
        raise IncompatibleError(
            f"model_type = {text.model_type!r}: config.json lacks max_position_embeddings"
        )
    return min([int(longest), *_original_lengths(_parameters(text))])


def served_positions(text: Any) -> int:
    """Return the maximum context length; `UNBOUNDED` if the configuration has none."""
    return longest_text(text) if getattr(text, "max_position_embeddings", None) else UNBOUNDED


def _original_lengths(ropes: Mapping[str, Any]) -> Iterator[int]:
    for rope in [ropes, *(value for value in ropes.values() if isinstance(value, dict))]:
        if rope.get("rope_type") == "longrope" and rope["short_factor"] != rope["long_factor"]:
            yield int(rope["original_max_position_embeddings"])


def _parameters(hf: Any) -> Mapping[str, Any]:
    return getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
