"""Attention of `transformers` models over our paged cache.

A model makes its masks by functions of two positions (causal, sliding window, chunks). This attention stores the
functions instead of the masks and evaluates them at the context positions of each request's tokens: in a pass over
several requests and trees, a token's row is not its position.

Arguments of the interface that change the result are applied; unknown arguments are refused.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from specinfer.errors import IncompatibleError
from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS

NAME = "specinfer_tree"
"""Name of this attention in `transformers`' interface."""
CURRENT: "ContextVar[GenericPass]" = ContextVar("specinfer_pass")
"""The running pass of this thread or task."""
MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]
Memory = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Attention call's number in a pass -> keys, values [slots, KV heads, D]."""

_WITHOUT_EFFECT = frozenset(
    {
        *("attention_mask", "cache_position", "input_ids", "inputs_embeds", "labels", "logits_to_keep"),
        *("layer_idx", "layer_type", "num_items_in_batch", "output_attentions", "output_hidden_states"),
        *("output_router_logits", "past_key_value", "past_key_values", "position_embeddings", "position_ids"),
        *("return_dict", "sliding_window", "token_type_ids", "use_cache"),
    }
)
"""Arguments of the interface that do not change the result."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """A model's mask, as a function of two positions."""

    function: MaskFunction


class _RequestRows(NamedTuple):
    rows: slice
    slots: torch.Tensor
    """[positions] slots of the keys."""
    visible: torch.Tensor
    """[rows, positions] True for keys on a token's own path."""
    queries: torch.Tensor
    """[rows] positions of the tokens."""
    keys: torch.Tensor
    """[positions] positions of the keys."""


class GenericPass:
    """One pass: its requests, and the cache for its attention calls."""

    def __init__(self, batch: Batch, slots: torch.Tensor, memory: Memory, capacity: int) -> None:
        """Prepare a pass; each attention call has an entry in `memory`."""
        self._slots, self._memory, self._capacity = slots, memory, capacity
        self._parts = [_part(rows, batch.positions, slots.device) for rows in batch.rows]
        self._masks: dict[MaskFunction | None, list[torch.Tensor]] = {}
        self.modules: list[torch.nn.Module] = []
        """Modules that called attention, in order."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: object,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Store the pass's keys and values; return attention [1, T, H, D].

        `query` is [1, H, T, D]; `key` and `value` are [1, KV heads, T, D].
        """
        if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == len(self._slots):
            raise IncompatibleError(
                f"{type(module).__name__}: attention must be over the pass's {len(self._slots)} tokens "
                f"(query {list(query.shape)}, key {list(key.shape)})"
            )
        keys, values = self._store(module, key, value)
        scale, cap, sinks = _understood(module, options)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
        for part, seen in zip(self._parts, self._seen(module, mask), strict=True):
            q = query[0, :, part.rows]
            k, v = (side.index_select(0, part.slots).transpose(0, 1) for side in (keys, values))
            out[part.rows] = _attention(q, k, v, seen, scale, cap, sinks).transpose(0, 1)
        return out[None]

    def _store(
        self, module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values; return all of this call."""
        call = len(self.modules)
        self.modules.append(module)
        if call not in self._memory:
            made = [t.new_zeros(self._capacity, t.shape[1], t.shape[3]) for t in (key, value)]
            self._memory[call] = made[0], made[1]
        for side, new in zip(self._memory[call], (key, value), strict=True):
            side.index_copy_(0, self._slots, new[0].transpose(0, 1))
        return self._memory[call]

    def _seen(self, module: torch.nn.Module, mask: object) -> list[torch.Tensor]:
        """Return masks [rows, positions]: the tree's and the model's combined."""
        if not (mask is None or isinstance(mask, _Mask)):
            raise IncompatibleError(f"{type(module).__name__}: its own mask tensors are not supported")
        function = mask.function if isinstance(mask, _Mask) else None
        if function not in self._masks:
            self._masks[function] = [_masked(part, function) for part in self._parts]
        return self._masks[function]


def _part(rows: AttentionRows, positions: list[int], device: torch.device) -> _RequestRows:
    places = torch.arange(rows.length)
    shift = positions[rows.start] - (rows.visible[0] + len(rows.extra[0]) - 1)
    visible = places < torch.tensor(rows.visible, dtype=torch.int64)[:, None]
    keys = places.clone()
    for row, extra in enumerate(rows.extra):
        visible[row, extra] = True
        keys[extra] = rows.visible[row] + torch.arange(len(extra))
    blocks = torch.tensor(rows.blocks, dtype=torch.int64)
    slots = blocks[places // BLOCK_TOKENS] * BLOCK_TOKENS + places % BLOCK_TOKENS
    queries = torch.tensor(positions[rows.start : rows.stop], dtype=torch.int64)
    tensors = (t.to(device) for t in (slots, visible, queries, keys + shift))
    return _RequestRows(slice(rows.start, rows.stop), *tensors)


def _masked(part: _RequestRows, function: MaskFunction | None) -> torch.Tensor:
    if function is None:
        return part.visible
    zero = part.keys.new_zeros(())
    allowed = function(zero, zero, part.queries[:, None], part.keys[None])
    return part.visible & allowed.expand(part.visible.shape)


def _understood(
    module: torch.nn.Module, options: Mapping[str, Any]
) -> tuple[float | None, float | None, torch.Tensor | None]:
    """Return scale, soft cap and sinks; refuse arguments that are unknown."""
    known = dict(options)
    scale, cap, sinks = (known.pop(name, None) for name in ("scaling", "softcap", "s_aux"))
    neutral = not known.pop("dropout", 0.0) and known.pop("is_causal", None) is not False
    unknown = sorted(
        name for name, value in known.items() if value is not None and name not in _WITHOUT_EFFECT
    )
    if unknown or not neutral:
        named = ", ".join(unknown) or "dropout or is_causal"
        raise IncompatibleError(f"{type(module).__name__}: attention with {named} is not supported")
    return scale, cap, sinks


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return attention [H, rows, Dv] of `query` [H, rows, D].

    Keys and values are [KV heads, positions, D].
    """
    if cap is None and sinks is None:
        grouped = query.shape[0] != key.shape[0]
        q, k, v = query[None], key[None], value[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)[0]
    groups = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = query @ key.transpose(1, 2) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if sinks is not None:
        column = sinks.reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, column.to(scores.dtype)], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return weights[..., : key.shape[1]] @ value


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    return CURRENT.get().attend(module, query, key, value, attention_mask, options), None


def _keep_rule(*_args: Any, mask_function: MaskFunction, **_kwargs: Any) -> _Mask:
    return _Mask(mask_function)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _keep_rule)
