"""Entries of a draft step, their outcomes and checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from specinfer.drafters import DrafterDescription, TargetTopK
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree, TreeLimits

Draft: TypeAlias = tuple[int, TokenTree | SpecInferError]
"""Number of a speculator, and its tree or error."""


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """One request of a draft step, as received."""

    request_id: str
    base_len: int
    delta: Sequence[int]
    limits: TreeLimits
    sampling: Sampling
    speculators: Sequence[int] = ()
    """Numbers of the speculators that draft; empty: all."""
    draw_seed: int = 0
    sees_noise: bool = True
    """True if `sampling` has the seed of the target's choices."""
    features: bytes = b""
    """Bytes of bfloat16 [positions, layers, hidden], from `features_start` on."""
    features_start: int = 0
    target_top_k: TargetTopK | None = None
    references: Sequence[Sequence[int]] = ()
    """Token ids of the request's references, in the first entry only."""
    cache_scope: str = ""
    """Scope of shared prompts, in the request's first entry only."""


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    request_id: str
    status: EntryStatus
    message: str = ""
    drafts: tuple[Draft, ...] = ()
    """Trees with nodes, and errors, by speculator."""
    cached_len: int = 0


_MAX_TOKEN = 2**31 - 1
"""Maximum token id: the target's vocabulary may exceed the drafters'."""


def check_entry(entry: DraftEntry, description: DrafterDescription, max_nodes: int, drafters: int) -> None:
    """Check an entry for a service with this combined description."""
    vocab_size = description.vocab_size
    if not entry.delta:
        raise InvalidInputError("delta_token_ids", [], "must not be empty")
    if vocab_size and not all(0 <= t < vocab_size for t in entry.delta):
        bad = next(t for t in entry.delta if not 0 <= t < vocab_size)
        raise InvalidInputError("delta_token_ids", bad, f"must be a token id from 0 to {vocab_size - 1}")
    _check_limits(entry.limits, max_nodes)
    _check_features(len(entry.features), description)
    if entry.target_top_k is not None:
        _check_top_k(entry.target_top_k, description.target_top_k)
    if entry.references:
        _check_references(entry, description)
    unknown = [s for s in entry.speculators if s >= drafters]
    if unknown:
        raise InvalidInputError("speculators", unknown[0], f"must be numbers from 0 to {drafters - 1}")


def _check_features(size: int, description: DrafterDescription) -> None:
    token_bytes = 2 * description.feature_size * len(description.feature_layers)
    if size and not token_bytes:
        reason = "must be empty: no speculator of this service reads hidden states"
        raise InvalidInputError("target_features", size, reason, "bytes")
    if size and size % token_bytes:
        reason = f"must be a multiple of {token_bytes}, the size of a token's hidden states"
        raise InvalidInputError("target_features", size, reason, "bytes")


def _check_limits(limits: TreeLimits, max_nodes: int) -> None:
    if limits.nodes > max_nodes:
        raise InvalidInputError("node_budget", limits.nodes, f"must be at most {max_nodes}")
    if not 0 <= limits.min_path_probability <= 1:
        least = limits.min_path_probability
        raise InvalidInputError("min_path_probability", least, "must be between 0 and 1")
    if not 0 <= limits.tokens_per_second < inf:
        speed = limits.tokens_per_second
        raise InvalidInputError("tokens_per_second", speed, "must be a finite number from 0 on")


def _check_references(entry: DraftEntry, description: DrafterDescription) -> None:
    count, largest = len(entry.references), max(max(text, default=0) for text in entry.references)
    if not description.reads_references:
        raise InvalidInputError(
            "references", count, "must be empty: no speculator of this service reads them", "texts"
        )
    if entry.base_len:
        raise InvalidInputError(
            "references", count, f"allowed with base_len 0 only, not {entry.base_len}", "texts"
        )
    vocab_size = description.vocab_size or _MAX_TOKEN + 1
    if largest >= vocab_size:
        reason = f"must be a token id from 0 to {vocab_size - 1}"
        raise InvalidInputError("references.token_ids", largest, reason)


def _check_top_k(top_k: TargetTopK, k: int) -> None:
    """Check the predictions for a service whose drafters read `k` per node."""
    width = top_k.top_k.shape[1]
    if width != k:
        reason = f"must be {k}, the tokens per node that this service reads"
        raise InvalidInputError("target_top_k", width, reason)
    largest = int(max(top_k.token_ids.max(), top_k.top_k.max()))
    if largest > _MAX_TOKEN:
        raise InvalidInputError("target_top_k", largest, f"must be a token id from 0 to {_MAX_TOKEN}")
