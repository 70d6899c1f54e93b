"""What the verifier's answer makes of a request. Pure."""

from specinfer.outcomes import EntryStatus, FinishReason
from specinfer.scheduling.entries import Progress, StepEntry, VerdictEntry
from specinfer.scheduling.request import RequestState
from specinfer.tree import TokenTree

MOST_PUT_OFF_S = 30.0
"""Time for which the verifier may put a request off before it fails: it has no room, compiles constraints, of
which each may take two seconds, or cannot read a layer. Steps are not counted: some are short."""


def apply_verdict(
    entry: StepEntry, tree: TokenTree | None, verdict: VerdictEntry, now: float
) -> Progress | None:
    """Changes the request's state by a verdict; what is new of it, None if nothing. Its state's `finish` says
    whether it ended.

    Args:
        verdict: fits the entry and its tree; whoever takes verdicts from outside checks them
            (`gateway.session.verdicts`).
    """
    state = entry.state
    if verdict.status is EntryStatus.RESYNC:
        state.verifier_len = 0
        return None
    if verdict.status is EntryStatus.EXHAUSTED:
        state.put_off_since = now if state.put_off_since is None else state.put_off_since
        if now - state.put_off_since <= MOST_PUT_OFF_S:
            return None
    if verdict.status is not EntryStatus.OK:
        return _fail(state, verdict.message, now, verdict.status is EntryStatus.EXHAUSTED)
    state.put_off_since = None
    state.verifier_len = verdict.held_len
    return None if tree is None else _accept(state, tree, verdict, now)


def _accept(state: RequestState, tree: TokenTree, verdict: VerdictEntry, now: float) -> Progress:
    outcome = state.stats.record(tree, verdict.accepted)
    start = state.new_tokens
    if start == 0:
        state.first_token_at = now
    since_s = None if state.last_token_at is None else now - state.last_token_at
    state.last_token_at = now
    kept = state.extend([*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus])
    reason = state.own_end
    if verdict.finished and len(kept) > len(verdict.accepted) and reason is not FinishReason.STOP_TOKEN:
        reason = FinishReason.CONSTRAINT
    if reason is not None:
        state.end(reason, now)
    logprobs = list(verdict.logprobs[: len(kept)])
    return Progress(state, kept, logprobs, start, reason is not None, since_s, outcome)


def _fail(state: RequestState, message: str, now: float, retryable: bool) -> Progress:
    state.end(FinishReason.ERROR, now, message, retryable)
    return Progress(state, [], [], state.new_tokens, True)
