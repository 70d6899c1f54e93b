"""Computes the size of the KV cache that fits in memory."""

from __future__ import annotations

from specinfer.errors import SettingError
from specinfer.model.weights.config import ModelConfig

AUTO_TOKENS = 0
"""Value of `RunnerOptions.kv_tokens` for the maximum that fits."""
SHARE = 0.75
"""Share of the free memory for the cache; drafters need the rest."""
MAX_REQUESTS = 16
"""Maximum size of an automatic cache: this many contexts of maximum length."""
_MIN_TOKENS = 512
_SCALE_BYTES = 4


def token_bytes(config: ModelConfig, dtype: str, kv_type: str) -> int:
    element = {"q8_0": 1, "bf16": 2}.get(kv_type, 4 if dtype == "float32" else 2)
    scale = _SCALE_BYTES if kv_type == "q8_0" else 0
    return 2 * config.kv_layers * config.kv_heads * (config.head_dim * element + scale)


def weight_bytes(config: ModelConfig, dtype: str, weights: str) -> int:
    """Return the bytes of a model's matrices on a GPU.

    Args:
        dtype: type of embeddings and head, and of layers that are not quantised.
        weights: int8 and fp8 quantise the layers; any other format is stored in `dtype`.
    """
    c, element = config, 4 if dtype == "float32" else 2
    rows = [3 * c.intermediate_size if c.gated else 2 * c.intermediate_size] * c.layers
    if c.experts is not None:
        mixture = 3 * (c.experts.count * c.experts.intermediate_size + c.experts.shared_size)
        rows = [rows[layer] if c.experts_of(layer) is None else mixture for layer in range(c.layers)]
    attention = 2 * (c.heads + c.kv_heads) * c.head_dim * c.layers
    tables = c.vocab_size * (1 if c.tied_embeddings else 2) + c.max_positions * c.learnt_positions
    in_layers = 1 if weights in ("int8", "fp8") else element
    return c.hidden_size * ((sum(rows) + attention) * in_layers + tables * element)


def fitting_tokens(available: int, weights: int, bytes_per_token: int, longest: int) -> int:
    """Return the number of context tokens that fit next to the weights.

    Args:
        available: free bytes before the weights are loaded.
        weights: bytes of the weights.
        bytes_per_token: see `token_bytes`; 0 for a model without attention.
        longest: maximum context length of the model, in tokens.
    """
    room = int((available - weights) * SHARE)
    tokens = min(room // max(1, bytes_per_token), MAX_REQUESTS * longest)
    if tokens < _MIN_TOKENS:
        left, needed = max(0, available - weights) / 1e6, _MIN_TOKENS * bytes_per_token / SHARE / 1e6
        reason = f"{left:.0f} MB are left after the weights, {needed:.0f} MB are needed"
        raise SettingError("kv_tokens", "auto", reason)
    return tokens
