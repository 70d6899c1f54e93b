"""Checks sizes in a `config.json` before `transformers` allocates memory for them.

While it reads a configuration, `transformers` makes a list entry per layer and a frequency per pair of head
dimensions: an absurd size would take all time and memory before any tensor is read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from specinfer.errors import IncompatibleError

_LARGEST: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2**12),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"), 2**14),
    **dict.fromkeys(("head_dim", "block_size", "speculative_tokens"), 2**14),
    **dict.fromkeys(("hidden_size", "target_hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 2**20),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 2**22),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 2**22),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), 2**14),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "vocab_size", "draft_vocab_size"), 2**24),
}
"""Maximum of each size, several times that of known models."""


def check_sizes(fields: Mapping[str, Any], least: int = 0) -> None:
    """Check the sizes in a configuration and its nested objects.

    Values that are not numbers are not checked.

    Args:
        least: minimum of all sizes; 0 for models that write 0 for absent sizes.
    """
    for name, value in _sizes(fields, ""):
        limit = _LARGEST[name.rpartition(".")[2]]
        if not least <= value <= limit:
            raise IncompatibleError(f"{name} = {value!r}: must be a whole number from {least} to {limit}")


def _sizes(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _sizes(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from _sizes(item, f"{prefix}{name}.")
        elif name in _LARGEST and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
