"""Compute the memory of each rank of a model from its configuration. Pure.

Memory of one rank, counted in numbers (of the weights' or the cache's type):
    weights    its layers' projections and norms; its rows of embeddings and head; the rotary tables
    KV         2 x its layers x its key-value heads x head size, for each token
"""

from dataclasses import dataclass

from specinfer.model.parallel.layout import Place
from specinfer.model.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one rank, in bytes."""

    weights: int
    kv_per_token: int


def rank_memory(config: ModelConfig, place: Place, number_bytes: int) -> Memory:
    """Return the memory of a rank; `number_bytes` is the size of a weight and of a number in the cache."""
    part = place.of(config)
    weights = part.layers * _layer_numbers(config, part) + _outer_numbers(config, place)
    kv = 2 * part.layers * part.kv_heads * part.head_dim
    return Memory(weights * number_bytes, kv * number_bytes)


def _layer_numbers(config: ModelConfig, stage_config: ModelConfig) -> int:
    """Return the numbers in the weights of one layer that this rank has."""
    hidden, inner = config.hidden_size, stage_config.intermediate_size
    heads, kv_heads = (
        stage_config.heads * stage_config.head_dim,
        stage_config.kv_heads * stage_config.head_dim,
    )
    everywhere = config.layer_norm  # the families with biases everywhere are those with mean and variance
    numbers = hidden * (2 * heads + 2 * kv_heads) + hidden * inner * (3 if config.gated else 2)
    numbers += 2 * hidden * (2 if config.layer_norm else 1) + (2 * config.head_dim if config.qk_norm else 0)
    if everywhere or config.family == "qwen2":
        numbers += heads + 2 * kv_heads
    if everywhere:
        numbers += inner + 2 * hidden
    return numbers


def _outer_numbers(config: ModelConfig, place: Place) -> int:
    """Return the numbers in embeddings, head, final norm and positions."""
    hidden = config.hidden_size
    table = len(place.share(config.vocab_size)) * hidden
    tables = int(place.is_first or (place.is_last and config.tied_embeddings))
    tables += int(place.is_last and not config.tied_embeddings)
    positions = 0
    if config.rotary_dim:
        positions = 2 * config.max_positions * config.rotary_dim
    elif place.is_first:
        positions = config.max_positions * hidden
    return tables * table + hidden * (2 if config.layer_norm else 1) + positions
