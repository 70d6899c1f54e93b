"""Whether a job may take part in a pass: its numbers are in range and it stays within the limits. Pure."""

from specinfer.errors import InvalidInputError
from specinfer.tree import TokenTree, check_tree, most_depth
from specinfer.tree.topology import depths
from specinfer.verification.jobs import VerifyJob
from specinfer.verification.limits import EngineLimits

_MOST_TOP_K = 256
"""Most token ids returned per node: the reply must stay within the size of a message."""


def check_job(job: VerifyJob, room: int, vocab_size: int, limits: EngineLimits) -> None:
    """Checks one job.

    Args:
        room: tokens that may still be added to the pass.

    Raises:
        InvalidInputError: naming what is wrong.
        MalformedTreeError: naming the broken invariant of its tree.
    """
    _check_tokens(job, vocab_size)
    total = job.base_len + len(job.delta)
    if total > limits.max_context_len:
        raise InvalidInputError(
            "context", total, f"longer than the {limits.max_context_len} positions served"
        )
    nodes = 0
    if job.tree is not None:
        nodes = len(job.tree) - 1
        _check_tree(job, job.tree, vocab_size, limits)
    if len(job.delta) + nodes > room:
        raise InvalidInputError(
            "delta_token_ids", len(job.delta), f"step exceeds {limits.max_step_tokens} tokens"
        )


def _check_tree(job: VerifyJob, tree: TokenTree, vocab_size: int, limits: EngineLimits) -> None:
    check_tree(tree, vocab_size, limits.max_nodes)
    if tree.root_token_id != job.delta[-1]:
        raise InvalidInputError("tree.token_ids[0]", tree.root_token_id, "must repeat the last delta token")
    if len(tree) == 1:
        return
    depth = int(depths(tree.parents).max())
    most = most_depth(job.base_len, len(job.delta), limits.max_context_len)
    if depth > most:
        served = limits.max_context_len
        raise InvalidInputError("tree.depth", depth, f"{most} of the {served} positions served are left")


def _check_tokens(job: VerifyJob, vocab_size: int) -> None:
    if not job.delta:
        raise InvalidInputError("delta_token_ids", [], "must not be empty")
    for token in job.delta:
        if not 0 <= token < vocab_size:
            raise InvalidInputError("delta_token_ids", token, f"not in the vocabulary of {vocab_size}")
    most = min(vocab_size, _MOST_TOP_K)
    for name, wanted in (("return_top_k", job.top_k), ("top_logprobs", job.top_logprobs)):
        if wanted > most:
            raise InvalidInputError(name, wanted, f"at most {most}")
