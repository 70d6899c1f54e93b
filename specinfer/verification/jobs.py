"""Defines the jobs of a verification step, and their checks."""

from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.errors import InvalidInputError, SettingError
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.request.sampling import Sampling
from specinfer.text.constraints.constraint import Constraint
from specinfer.tree import TokenTree, check_tree, depth_limit
from specinfer.tree.shape import depths


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of requests, trees and steps."""

    max_requests: int = 1024
    max_nodes: int = 128
    max_step_tokens: int = 2048
    max_context_len: int = 8192
    idle_seconds: float = 300.0
    """Seconds without a step after which a request is forgotten."""


def checked_context(field: str, wanted: int, positions: int) -> int:
    """Return `wanted`, a maximum context in tokens; 0: the model's positions."""
    if wanted > positions:
        raise SettingError(field, wanted, f"must be at most {positions}, the model's positions")
    return wanted or positions


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """One request's part of a step."""

    request_id: str
    base_len: int
    delta: Sequence[int]
    tree: TokenTree | None
    sampling: Sampling
    logprobs: bool = False
    top_logprobs: int = 0
    """Number of most probable tokens to return for each output token."""
    top_k: int = 0
    features_from: int | None = None
    """First context position whose hidden states are returned; None: none are."""
    prompt_len: int = 0
    """Number of prompt tokens; only jobs with `base_len` 0 set it."""
    constraint: Constraint | None = None
    """Constraint on the text; only jobs with `base_len` 0 set it."""
    cache_scope: str = ""
    """Requests of equal scopes share prompt blocks.

    Only jobs with `base_len` 0 set it.
    """
    read_limit: int = 0
    """Maximum tokens of the delta to compute or restore; 0: all.

    Tokens shared in memory do not count, and blocks are read whole. With a limit, the delta's last token is
    left for a later step, as the root of a tree.
    """

    def tentative(self) -> tuple[list[int], list[int]]:
        """Return the nodes' tokens and parents, without the root (parent -1)."""
        if self.tree is None:
            return [], []
        return self.tree.token_ids[1:].tolist(), (self.tree.parents[1:] - 1).tolist()

    def part_to_read(self, known: int, restored: int = 0) -> Sequence[int]:
        """Return the delta's tokens to compute, after `known` cached tokens.

        The limit counts `restored` of the `known` tokens. If the limit ends the part, the part ends with a block, if
        possible, as requests share whole blocks.
        """
        if not self.read_limit:
            return self.delta[known:]
        end = known + max(0, self.read_limit - restored)
        if end >= len(self.delta) - 1:
            return self.delta[known:-1]
        whole = (self.base_len + end) // BLOCK_TOKENS * BLOCK_TOKENS - self.base_len
        return self.delta[known : whole if whole > known else end]


MAX_TOP_K = 256
"""Maximum tokens returned per node, so that messages stay small."""


def check_job(job: VerifyJob, room: int, vocab_size: int, limits: EngineLimits) -> None:
    """Check a job.

    Args:
        room: number of tokens and nodes that the step can still take.
        vocab_size: size of the target's vocabulary.
        limits: limits of this verifier.
    """
    _check_tokens(job, vocab_size)
    total = job.base_len + len(job.delta)
    if total > limits.max_context_len:
        raise InvalidInputError(
            "context", total, f"at most {limits.max_context_len} in base_len and delta_token_ids", "tokens"
        )
    nodes = 0
    if job.tree is not None:
        if job.read_limit:
            raise InvalidInputError("read_limit", job.read_limit, "must be 0 for an entry with a tree")
        nodes = len(job.tree) - 1
        _check_tree(job, job.tree, vocab_size, limits)
    rows = min(job.read_limit or len(job.delta), len(job.delta)) + nodes
    if rows > room:
        reason = f"only {room} of the step's {limits.max_step_tokens} tokens and nodes are free"
        raise InvalidInputError("delta_token_ids", rows, reason, "tokens and nodes")


def _check_tree(job: VerifyJob, tree: TokenTree, vocab_size: int, limits: EngineLimits) -> None:
    check_tree(tree, vocab_size, limits.max_nodes)
    if tree.root_token_id != job.delta[-1]:
        raise InvalidInputError("tree.token_ids[0]", tree.root_token_id, "must repeat the last delta token")
    if len(tree) == 1:
        return
    depth = int(depths(tree.parents).max())
    max_depth = depth_limit(job.base_len, len(job.delta), limits.max_context_len)
    if depth > max_depth:
        reason = f"must be at most {max_depth}: the context may have {limits.max_context_len} tokens"
        raise InvalidInputError("tree.depth", depth, reason)


def _check_tokens(job: VerifyJob, vocab_size: int) -> None:
    if not job.delta:
        raise InvalidInputError("delta_token_ids", [], "must not be empty")
    if job.read_limit and len(job.delta) == 1:
        raise InvalidInputError("read_limit", job.read_limit, "must be 0 for a delta of one token")
    for token in job.delta:
        if not 0 <= token < vocab_size:
            raise InvalidInputError(
                "delta_token_ids", token, f"must be a token id from 0 to {vocab_size - 1}"
            )
    max_k = min(vocab_size, MAX_TOP_K)
    for name, wanted in (("return_top_k", job.top_k), ("top_logprobs", job.top_logprobs)):
        if wanted > max_k:
            raise InvalidInputError(name, wanted, f"must be at most {max_k}")
