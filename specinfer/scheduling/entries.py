"""Plan a step's entries, and apply its verdicts. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specinfer.request.statuses import EntryStatus, FinishReason, LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.scheduling.batch import PromptLimit, delta_lengths, unlimited
from specinfer.scheduling.limits import CacheRoom, split_budget
from specinfer.scheduling.request import RequestState, Speculation
from specinfer.scheduling.statistics import SpeculationCounts, count_tree
from specinfer.tree import FREE, TokenTree, TreeLimits, TreeWorth, depth_limit


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One request's part of a step."""

    state: RequestState
    base_len: int
    delta: tuple[int, ...]
    final: bool
    """True if the delta includes the last committed token, the tree's root."""
    limits: TreeLimits
    reach: int
    """Maximum depth of the tree's nodes, from any speculator."""
    forced: int = 0
    """Maximum additional nodes for tokens forced by the constraint."""
    read_limit: int = 0
    """Maximum tokens of the delta to compute or restore; 0: all.

    Restored tokens are read from the prefix directory. Tokens in the verifier's cache do not count.
    """

    @property
    def request_id(self) -> str:
        return self.state.request.request_id

    @property
    def max_read(self) -> int:
        """Maximum tokens of the delta that the verifier computes."""
        return self.read_limit or len(self.delta)

    @property
    def drafts(self) -> bool:
        """True if speculators should draft for the request."""
        return self.final and not self.limits.empty

    @property
    def context_len(self) -> int:
        """Context tokens of the request when the step began."""
        return self.base_len + len(self.delta)

    def without_tree(self) -> "StepEntry":
        """Return the same entry without drafts."""
        return replace(self, limits=TreeLimits(0, 0), reach=0, forced=0)

    def following(self) -> "StepEntry":
        """Return the next step's entry, after this step's tokens are committed.

        The delta is the bonus token. The next tree must end where this entry's tree could end, so accepted tokens
        reduce its depth.
        """
        state = self.state
        reach = depth_limit(0, len(state.tokens), self.context_len + self.reach)
        limits = replace(self.limits, depth=min(self.limits.depth, reach))
        delta = tuple(state.tokens[state.verifier_len :])
        return replace(self, base_len=state.verifier_len, delta=delta, limits=limits, reach=reach)


class LatestDrafts:
    """Latest drafts of one group of drafters, by request.

    A request that the verifier deferred has the same context in its next step and must use the same drafts:
    drafting again could bias the output.
    """

    def __init__(self) -> None:
        self._drafts: dict[str, tuple[int, Sequence[tuple[int, TokenTree]]]] = {}

    def note(self, entry: StepEntry, drafts: Sequence[tuple[int, TokenTree]]) -> None:
        """Store an entry's drafts, for the context of the entry."""
        self._drafts[entry.request_id] = entry.context_len, drafts

    def of(self, entry: StepEntry) -> Sequence[tuple[int, TokenTree]]:
        """Return the drafts for this entry's context; () for another context."""
        length, drafts = self._drafts.get(entry.request_id, (0, ()))
        return drafts if length == entry.context_len else ()

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._drafts.pop(request_id, None)

    def clear(self) -> None:
        self._drafts.clear()


@dataclass(slots=True)
class Progress:
    """New tokens of one request, and whether they end the request.

    Progress is stored later, when `state` may already have further tokens.
    """

    state: RequestState
    tokens: list[int]
    logprobs: list[LogprobRow]
    start: int
    """Number of generated tokens before `tokens`."""
    final: bool
    """True if the request ends with these tokens."""

    since_s: float | None = None
    """Seconds since the request's previous tokens; None: first at this gateway."""
    counts: SpeculationCounts | None = None
    """Counts of the verified tree."""
    published: bool = False
    """True if Redis has stored the tokens and clients may read them."""

    @property
    def request_id(self) -> str:
        return self.state.request.request_id

    def cut(self, keep: int) -> None:
        """Keep only the first `keep` tokens, here and in the request's state."""
        drop = len(self.tokens) - keep
        if drop:
            del self.state.tokens[-drop:]
            del self.tokens[keep:], self.logprobs[keep:]


def united(items: Sequence[Progress]) -> Progress:
    """Return consecutive progress items of one request as one item."""
    if len(items) == 1:
        return items[0]
    tokens = [token for item in items for token in item.tokens]
    logprobs = [row for item in items for row in item.logprobs]
    return Progress(items[0].state, tokens, logprobs, items[0].start, items[-1].final)


def plan_entries(
    states: Sequence[RequestState],
    room: CacheRoom,
    max_nodes: int | None,
    worth: TreeWorth,
    max_prompt_tokens: PromptLimit = unlimited,
) -> list[StepEntry]:
    """Return the entries of a step, without requests whose prompts wait.

    `max_prompt_tokens` limits the tokens of prompts.
    """
    limits = room.limits
    wanted = [_wanted_nodes(state, room, max_nodes) for state in states]
    shares = split_budget(room.budget, wanted)
    decoding = sum(1 + share for state, share in zip(states, shares, strict=True) if state.pending == 1)
    lengths = delta_lengths(states, limits, lambda context: max_prompt_tokens(decoding, context))
    free = limits.max_step_tokens - sum(lengths)
    entries: list[StepEntry] = []
    for state, length, share in zip(states, lengths, shares, strict=True):
        if length == 0:
            continue
        final = length == state.pending
        nodes = min(share, free) if final else 0
        free -= nodes
        entries.append(_entry(state, length, final, nodes, room, worth))
    return _with_forced(entries, room, free)


def _with_forced(entries: list[StepEntry], room: CacheRoom, free: int) -> list[StepEntry]:
    """Give entries with constraints the remaining nodes for forced tokens."""
    for index, entry in enumerate(entries):
        request = entry.state.request
        if request.constraint is not None and entry.final and entry.reach:
            forced = min(room.max_nodes(request, len(entry.state.tokens)) - entry.limits.nodes, free)
            entries[index] = replace(entry, forced=forced)
            free -= forced
    return entries


def unplannable(states: Iterable[RequestState], room: CacheRoom) -> list[tuple[RequestState, Exception]]:
    """Return the requests that cannot be planned even alone, with the exceptions."""
    failures = list[tuple[RequestState, Exception]]()
    for state in states:
        try:
            room.to_admit(state.request, len(state.tokens))
            plan_entries([state], room, None, FREE)
        except Exception as error:  # noqa: BLE001  # any fault ends only this request
            failures.append((state, error))
    return failures


def _wanted_nodes(state: RequestState, room: CacheRoom, max_nodes: int | None) -> int:
    nodes = room.max_nodes(state.request, len(state.tokens)) if room.depth_limit(state) else 0
    return nodes if max_nodes is None else min(nodes, max_nodes)


def _entry(
    state: RequestState, length: int, final: bool, nodes: int, room: CacheRoom, worth: TreeWorth
) -> StepEntry:
    """Return an entry that makes the verifier compute up to `length` tokens.

    A prompt that needs several steps is sent with all pending tokens until the verifier has computed a token, because
    the verifier may find some of the tokens in its cache.
    """
    base, reach = state.verifier_len, room.depth_limit(state)
    read_limit = 0 if final or (base and not state.all_found) else length
    if read_limit:
        length = state.pending
    sequence = state.request.speculation is Speculation.SEQUENCE
    depth = min(room.limits.sequence_length if sequence else room.limits.tree_depth, reach)
    limits = TreeLimits(nodes, depth, 1 if sequence else None, *worth)
    delta = tuple(state.tokens[base : base + length])
    return StepEntry(state, base, delta, final, limits, reach, read_limit=read_limit)


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
