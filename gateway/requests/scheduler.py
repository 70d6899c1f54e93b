"""Decides what runs next. A pure state machine: time comes in as an argument, nothing is awaited.

    submit -> waiting --plan--> running --commit--> running | finished
                 |   <-preempt--   |
                 +---- cancel -----+--> finished (at the next plan)

Iteration-level ("continuous") batching: every plan takes all running requests, admits waiting ones
while there is room, and gives prompts at most one chunk of prefill per step, so that a long prompt
delays the others by at most one chunk. Room is counted in cache blocks of what requests hold now, not of
the worst case; when the running ones outgrow the cache, the last of the lowest priority goes back to
waiting and is computed again later (mostly from shared blocks). Invariant: what a step needs fits into
the verifier's cache, and the first request of the highest priority always runs.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.requests.budget import NodeBudget, split_budget
from gateway.requests.request import FinishReason, GenerationRequest, RequestState, Speculation
from gateway.requests.step import Progress, StepEntry, VerdictEntry
from specinfer.entry_status import EntryStatus
from specinfer.errors import AlreadyExistsError, ExhaustedError, NotFoundError
from specinfer.tree import TokenTree, TreeLimits

MAX_RETRIES = 50
"""Consecutive steps a request may find the verifier full before it fails."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What may run at once."""

    max_batch: int = 16
    max_waiting: int = 256
    prefill_chunk: int = 512
    """Most prompt tokens in one step, over all requests."""
    tree_depth: int = 8
    sequence_length: int = 5
    """Nodes of a chain in sequence speculation."""
    max_step_tokens: int = 2048
    kv_capacity_tokens: int = 32768
    kv_block_tokens: int = 16
    kv_window_tokens: int = 0
    """Context tokens the verifier keeps per request; 0 for all."""
    max_tree_nodes: int = 127
    """Most nodes the verifier accepts in one tree, root excluded."""


class Scheduler:
    """Holds every request between submission and finish."""

    def __init__(self, limits: SchedulerLimits, budget: NodeBudget) -> None:
        self._limits, self._budget = limits, budget
        self._waiting: list[tuple[int, int, RequestState]] = []
        self._running: dict[str, RequestState] = {}
        self._states: dict[str, RequestState] = {}
        self._arrivals = 0
        self._preempted: list[str] = []

    @property
    def waiting(self) -> int:
        """Requests not admitted yet."""
        return len(self._states) - len(self._running)

    @property
    def running(self) -> int:
        """Requests being decoded."""
        return len(self._running)

    def submit(self, request: GenerationRequest, now: float, draws: bool = False) -> RequestState:
        """Queues a request.

        Args:
            draws: whether any speculator draws for requests that are sampled.

        Raises:
            AlreadyExistsError: if a request of this id is waiting or running.
            ExhaustedError: if the queue is full or the request could never fit.
        """
        if request.request_id in self._states:
            raise AlreadyExistsError(f"request_id = {request.request_id!r}: already running")
        if self.waiting >= self._limits.max_waiting:
            raise ExhaustedError(f"queue full: {self.waiting} requests are waiting", retry_after_s=1.0)
        state = RequestState.new(request, now, self._arrivals, draws)
        if self._room(state, request.max_new_tokens) > self._limits.kv_capacity_tokens:
            raise ExhaustedError(
                f"prompt + max_new_tokens = {len(request.prompt)} + {request.max_new_tokens}: "
                f"over the cache of {self._limits.kv_capacity_tokens} tokens"
            )
        self._states[request.request_id] = state
        self._arrivals += 1
        self._wait(state)
        return state

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next plan.

        Raises:
            NotFoundError: if it is neither waiting nor running.
        """
        if request_id not in self._states:
            raise NotFoundError(f"request_id = {request_id!r}: not running")
        self._states[request_id].cancelled = True

    def reap(self, now: float) -> list[Progress]:
        """Finishes cancelled requests; call before each plan."""
        cancelled = [state for state in self._states.values() if state.cancelled]
        for state in cancelled:
            self.finish(state, FinishReason.CANCELLED, now)
        return [Progress(state, [], [], state.new_tokens, True) for state in cancelled]

    def admit(self, now: float) -> tuple[int, list[str]]:
        """Admits waiting requests while there is room; how many run, and those of them that want drafts."""
        self._admit(now)
        running = self._running.items()
        wanting = [name for name, state in running if state.request.speculation is not Speculation.OFF]
        return len(running), wanting

    def plan(self, now: float, most_nodes: int | None = None, least_reach: float = 0.0) -> list[StepEntry]:
        """The entries of the next step; empty if there is nothing to do.

        Args:
            most_nodes: most nodes of one request's tree or chain in this step; None leaves it to the budget.
            least_reach: probability of a path below which following it is hardly worth it in this step.
        """
        self._admit(now)
        self._preempt()
        states = list(self._running.values())
        room = self._limits.max_step_tokens - len(states)
        chunk = min(self._limits.prefill_chunk, room)
        wanted = [self._wanted_nodes(state) for state in states]
        if most_nodes is not None:
            wanted = [min(nodes, most_nodes) for nodes in wanted]
        entries: list[StepEntry] = []
        for state, nodes in zip(states, split_budget(self._budget, wanted), strict=True):
            pending = len(state.tokens) - state.verifier_len
            length = 1 if pending == 1 else min(pending, chunk)
            if length == 0:
                continue  # its prompt has to wait for the next step
            chunk -= length if pending > 1 else 0
            final = length == pending
            nodes = min(nodes, room - max(chunk, 0)) if final else 0
            room -= nodes
            entries.append(self._entry(state, length, final, nodes, least_reach))
        return entries

    def take_preempted(self) -> list[str]:
        """Requests preempted since the last call: the verifier must forget them before the next step."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def commit(
        self,
        entries: Sequence[StepEntry],
        trees: Mapping[str, TokenTree],
        verdicts: Mapping[str, VerdictEntry],
        now: float,
    ) -> list[Progress]:
        """Applies the verifier's verdicts; returns what became of each request that moved."""
        progress: list[Progress] = []
        for entry in entries:
            verdict = verdicts.get(entry.request_id)
            if verdict is None or entry.state.finish is not None:
                continue
            moved = self._apply(entry, trees.get(entry.request_id), verdict, now)
            if moved is not None:
                progress.append(moved)
        return progress

    def cut(self, progress: Progress, keep: int, now: float) -> None:
        """A stop string ended the request after `keep` of its newest tokens."""
        drop = len(progress.tokens) - keep
        if drop:
            del progress.state.tokens[-drop:]
            del progress.tokens[keep:], progress.logprobs[keep:]
        progress.final = True
        self.finish(progress.state, FinishReason.STOP_STRING, now)

    def fail(
        self, states: Sequence[RequestState], message: str, now: float, retryable: bool = True
    ) -> list[Progress]:
        """Ends requests with an error; says whether the same request may succeed later."""
        for state in states:
            state.error, state.retryable = message, retryable
            self.finish(state, FinishReason.ERROR, now)
        return [Progress(state, [], [], state.new_tokens, True) for state in states]

    def finish(self, state: RequestState, reason: FinishReason, now: float) -> None:
        """Takes a request out of the schedule."""
        state.finish, state.finished_at = reason, now
        request_id = state.request.request_id
        self._states.pop(request_id, None)
        if self._running.pop(request_id, None) is None:
            self._waiting = [item for item in self._waiting if item[2] is not state]
            heapq.heapify(self._waiting)

    def _wait(self, state: RequestState) -> None:
        heapq.heappush(self._waiting, (-state.request.priority, state.arrival, state))

    def _admit(self, now: float) -> None:
        block = self._limits.kv_block_tokens
        # a block of slack for each, so that who is admitted is not preempted at once
        used = sum(self._room(state) + block for state in self._running.values())
        while self._waiting and len(self._running) < self._limits.max_batch:
            state = self._waiting[0][2]
            used += self._room(state) + block
            if self._running and used > self._limits.kv_capacity_tokens:
                return
            heapq.heappop(self._waiting)
            state.admitted_at = state.admitted_at or now
            self._running[state.request.request_id] = state

    def _preempt(self) -> None:
        """Sends the least of the running requests back to waiting until the others fit."""
        by_rank = sorted(self._running.values(), key=lambda s: (-s.request.priority, s.arrival))
        used = sum(self._room(state) for state in by_rank)
        while used > self._limits.kv_capacity_tokens and len(by_rank) > 1:
            state = by_rank.pop()
            used -= self._room(state)
            state.verifier_len = 0
            state.preemptions += 1
            del self._running[state.request.request_id]
            self._wait(state)
            self._preempted.append(state.request.request_id)

    def _room(self, state: RequestState, more: int = 0) -> int:
        """Cache tokens a request needs in its next step, `more` tokens ahead: context, tree, whole blocks."""
        block, window = self._limits.kv_block_tokens, self._limits.kv_window_tokens
        context = len(state.tokens) + more
        if window:  # it may hold a block and the chunk it is reading beyond its window
            context = min(context, window + block + self._limits.prefill_chunk)
        tokens = context + self._most_nodes(state)
        return -(-tokens // block) * block

    def _most_nodes(self, state: RequestState) -> int:
        if state.request.speculation is Speculation.OFF:
            return 0
        if state.request.speculation is Speculation.SEQUENCE:
            return min(self._limits.sequence_length, self._budget.per_request, self._limits.max_tree_nodes)
        return min(self._budget.per_request, self._limits.max_tree_nodes)

    def _wanted_nodes(self, state: RequestState) -> int:
        """A drafted token is only of use if it and the bonus token may still be generated."""
        return self._most_nodes(state) if state.remaining > 1 else 0

    def _entry(
        self, state: RequestState, length: int, final: bool, nodes: int, least_reach: float
    ) -> StepEntry:
        base = state.verifier_len
        sequence = state.request.speculation is Speculation.SEQUENCE
        depth = self._limits.sequence_length if sequence else self._limits.tree_depth
        limits = TreeLimits(nodes, min(depth, state.remaining - 1), 1 if sequence else None, least_reach)
        return StepEntry(state, base, tuple(state.tokens[base : base + length]), final, limits)

    def _apply(
        self, entry: StepEntry, tree: TokenTree | None, verdict: VerdictEntry, now: float
    ) -> Progress | None:
        state = entry.state
        if verdict.status is EntryStatus.RESYNC:
            state.verifier_len = 0
            return None
        if verdict.status is EntryStatus.EXHAUSTED and state.retries < MAX_RETRIES:
            state.retries += 1
            return None
        if verdict.status is not EntryStatus.OK:
            retryable = verdict.status is EntryStatus.EXHAUSTED
            return self.fail([state], verdict.message, now, retryable)[0]
        state.retries = 0
        state.verifier_len = verdict.held_len
        if tree is None:
            return None
        if not all(0 < node < len(tree) for node in verdict.accepted):
            message = f"the verifier accepted nodes {list(verdict.accepted)} of a tree of {len(tree)}"
            return self.fail([state], message, now, retryable=False)[0]
        state.stats.record(tree, verdict.accepted)
        drafted = [int(tree.token_ids[node]) for node in verdict.accepted]
        return self._extend(state, [*drafted, verdict.bonus], list(verdict.logprobs), now)

    def _extend(self, state: RequestState, tokens: list[int], logprobs: list[float], now: float) -> Progress:
        """Appends tokens up to the first that ends the request: what follows a stop is dropped."""
        kept = tokens[: state.remaining]
        stop = next((i for i, t in enumerate(kept) if t in state.request.stop_token_ids), None)
        if stop is not None:
            kept = kept[: stop + 1]
        if state.first_token_at is None:
            state.first_token_at = now
        start = state.new_tokens
        state.tokens.extend(kept)
        if stop is not None:
            self.finish(state, FinishReason.STOP_TOKEN, now)
        elif state.remaining == 0:
            self.finish(state, FinishReason.LENGTH, now)
        return Progress(state, kept, logprobs[: len(kept)], start, state.finish is not None)
