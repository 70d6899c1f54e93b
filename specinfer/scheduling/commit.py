"""Apply the verifier's answers to requests. Pure."""

from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import Progress, StepEntry
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.statistics import count_tree
from specinfer.tree import TokenTree

MAX_DEFERRED_S = 30.0
"""Maximum seconds for which the verifier may defer a request.

The verifier defers a request when the cache is full, while a constraint is compiled (up to two seconds each), or when
an offloaded layer cannot be read.
"""
_MAX_OF_STEP_S = 5.0
"""Maximum deferred seconds counted per step, in case a process was suspended."""


def apply_verdict(entry: StepEntry, tree: TokenTree | None, verdict: Verdict, now: float) -> Progress | None:
    """Apply a verdict to the request's state; return the progress, if any.

    The state's `finish` is set if the request ended.

    Args:
        entry: the request's part of the step.
        tree: the tree that was verified, if there was one.
        verdict: must fit entry and tree, as `gateway.session.verdicts` checks.
    """
    state = entry.state
    if verdict.status is EntryStatus.RESYNC:
        state.verifier_len = 0
        return None
    if verdict.status is EntryStatus.EXHAUSTED:
        if state.deferred_at is not None:
            state.deferred_s += min(now - state.deferred_at, _MAX_OF_STEP_S)
        state.deferred_at = now
        if state.deferred_s <= MAX_DEFERRED_S:
            return None
    if verdict.status is not EntryStatus.OK:
        return _fail(state, verdict, now)
    state.deferred_at, state.deferred_s = None, 0.0
    state.verifier_len = verdict.cached_len
    state.all_found = verdict.cached_len == entry.base_len + verdict.cached_tokens
    if not state.new_tokens:
        before = state.cached_tokens if entry.base_len else 0
        state.cached_tokens = min(before + verdict.cached_tokens, len(state.request.prompt))
    return None if tree is None else _accept(state, tree, verdict, now)


def _accept(state: RequestState, tree: TokenTree, verdict: Verdict, now: float) -> Progress:
    counts = count_tree(tree, verdict.accepted)
    state.stats += counts
    start = state.new_tokens
    if start == 0:
        state.first_token_at = now
    since_s = None if state.last_token_at is None else now - state.last_token_at
    state.last_token_at = now
    kept = state.extend(verdict.tokens(tree))
    reason = state.own_end
    if verdict.finished and len(kept) > len(verdict.accepted) and reason is not FinishReason.STOP_TOKEN:
        reason = FinishReason.CONSTRAINT
    if reason is not None:
        state.end(reason, now)
    logprobs = list(verdict.logprobs[: len(kept)])
    return Progress(state, kept, logprobs, start, reason is not None, since_s, counts)


def _fail(state: RequestState, verdict: Verdict, now: float) -> Progress:
    retryable, invalid = verdict.status is EntryStatus.EXHAUSTED, verdict.status is EntryStatus.INVALID
    state.end(FinishReason.ERROR, now, verdict.message, retryable, invalid)
    return Progress(state, [], [], state.new_tokens, True)
