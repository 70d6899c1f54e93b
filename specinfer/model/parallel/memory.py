"""Memory of the ranks that share a model. Pure arithmetic, from its configuration.

Of one rank, in numbers:
    weights    its layers' projections and norms; its rows of embeddings and head; the rotary tables
    KV         2 x its layers x its key-value heads x head size, for each token
    pass       hidden states, projections and float32 logits of the largest step, at its widest moment
"""

from dataclasses import dataclass

from specinfer.model.parallel.layout import Layout, Place
from specinfer.model.weights.config import ModelConfig

_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank."""

    weights: int
    kv_per_token: int
    working: int
    """Bytes of the largest pass."""

    def tokens(self, memory_bytes: int) -> int:
        """Return the context tokens whose keys and values fit beside the rest."""
        return max(0, memory_bytes - self.weights - self.working) // self.kv_per_token


def rank_memory(
    config: ModelConfig, place: Place, number_bytes: int, step_tokens: int, logit_rows: int
) -> Memory:
    """Return the memory of a rank.

    Args:
        number_bytes: of a weight, and of a number in the cache.
        step_tokens: most tokens of a pass.
        logit_rows: most rows of logits of a pass.
    """
    own = place.of(config)
    weights = own.layers * _layer_numbers(config, own) + _outer_numbers(config, place)
    kv = 2 * own.layers * own.kv_heads * own.head_dim
    inner = own.intermediate_size * (2 if own.gated else 1)
    heads = (2 * own.heads + 2 * own.kv_heads) * own.head_dim
    widest = step_tokens * (3 * config.hidden_size + max(inner + own.intermediate_size, heads))
    logits = logit_rows * config.vocab_size * _LOGIT_BYTES * 2 if place.is_last else 0
    return Memory(weights * number_bytes, kv * number_bytes, widest * number_bytes + logits)


def largest_memory(
    config: ModelConfig, layout: Layout, number_bytes: int, step_tokens: int, logit_rows: int
) -> Memory:
    """Return the memory of the fullest rank; all have the same device."""
    ranks = [
        rank_memory(config, Place(layout, rank), number_bytes, step_tokens, logit_rows)
        for rank in range(0, layout.ranks, layout.tensor)
    ]
    return Memory(
        max(each.weights for each in ranks),
        max(each.kv_per_token for each in ranks),
        max(each.working for each in ranks),
    )


def _layer_numbers(config: ModelConfig, own: ModelConfig) -> int:
    """Return the numbers in the weights of one layer that this rank has."""
    hidden, inner = config.hidden_size, own.intermediate_size
    heads, kv_heads = own.heads * own.head_dim, own.kv_heads * own.head_dim
    everywhere = config.layer_norm  # the families with biases everywhere are those with mean and variance
    found = hidden * (2 * heads + 2 * kv_heads) + hidden * inner * (3 if config.gated else 2)
    found += 2 * hidden * (2 if config.layer_norm else 1) + (2 * config.head_dim if config.qk_norm else 0)
    if everywhere or config.family == "qwen2":
        found += heads + 2 * kv_heads
    if everywhere:
        found += inner + 2 * hidden
    return found


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
