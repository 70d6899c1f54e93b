"""Choose the requests of each step. Pure.

    submit -> waiting --plan--> running --commit--> running | finished
                 |   <-preempt--   |
                 +- cancel, time --+--> finished (at the next reap)
                 +----- drop ------+--> another gateway's

Iteration-level ("continuous") batching: every plan contains all running requests, admits waiting ones while
there is space (in the order of `specinfer.scheduling.queue`), and reads at most one chunk of prompt tokens.
Space is counted in cache blocks of present use, not of the worst case. When the running requests outgrow the
cache, one of the lowest priority is preempted: it waits, and its context is computed again later. Invariant:
each step fits into the verifier's cache, and the request that `RunningBatch` never preempts finishes.
"""

import logging
from collections.abc import Mapping, Sequence

from specinfer.errors import ExhaustedError, FaultError
from specinfer.request.statuses import FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.batch import RunningBatch
from specinfer.scheduling.entries import Progress, StepEntry, apply_verdict, plan_entries, unplannable
from specinfer.scheduling.limits import CacheRoom, NodeBudget, SchedulerLimits
from specinfer.scheduling.queue import FinishRate, RequestTable
from specinfer.scheduling.reading import ReadingPace
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.scheduling.text import StopStrings
from specinfer.system.log_lines import about
from specinfer.tree import FREE, TokenTree, TreeWorth

log = logging.getLogger(__name__)


class Scheduler:
    """Manages every request between submission and finish."""

    def __init__(self, limits: SchedulerLimits, budget: NodeBudget, stops: StopStrings | None = None) -> None:
        """Start empty; `stops` finds the stop strings of requests."""
        self._limits, self._room, self._stops = limits, CacheRoom(limits, budget), stops
        self._batch = RunningBatch(self._room)
        self._reading = ReadingPace(budget.pass_seconds, budget.context_s)
        self._table = RequestTable()
        self._arrivals = 0
        self._rate = FinishRate()

    @property
    def budget(self) -> NodeBudget:
        return self._room.budget

    @property
    def waiting(self) -> int:
        return len(self._batch.queue)

    @property
    def running(self) -> int:
        return len(self._batch.running)

    @property
    def cache_tokens(self) -> int:
        """Cache tokens that running requests need in their next step."""
        return self._batch.cache_tokens

    @property
    def spare(self) -> int:
        """Number of additional requests that could run at average cache use."""
        return self._batch.spare

    @property
    def states(self) -> Mapping[str, RequestState]:
        """Waiting and running requests by id, in order of submission. Read-only."""
        return self._table.states

    def submit(
        self,
        request: GenerationRequest,
        now: float,
        draws: bool = False,
        *,
        generated: Sequence[int] = (),
        drawn_for: bool | None = None,
        arrived_ago_s: float = 0.0,
        adoption: int = 1,
    ) -> RequestState:
        """Queue a new request, or a request that another gateway has begun.

        If the generated tokens already end the request, it is not queued; the returned state has `finish` set.

        Args:
            draws: whether any speculator samples its drafts for sampled requests.
            generated: already committed tokens after the prompt.
            drawn_for: the request's value at its first gateway; None derives the value from `draws`.
            arrived_ago_s: seconds since arrival, from which its queue order and deadline are computed.
            adoption: number of the request's owners so far.
        """
        self._table.check_new(request.request_id)
        drawn_for = request.drawn_for(draws) if drawn_for is None else drawn_for
        state = RequestState.new(request, now - arrived_ago_s, self._arrivals, drawn_for, generated, adoption)
        if state.own_end is not None:
            state.end(state.own_end, now)
            return state
        self._check_room(request, now)
        self._arrivals += 1
        stopped = self._stops is not None and self._stops.begin(request, generated)
        self._add(state, now)
        if stopped:
            self.finish(state, FinishReason.STOP_STRING, now)  # its first gateway ended before it stored this
        return state

    def could_hold(self, request: GenerationRequest) -> bool:
        """Return whether context and cache suffice for a request's maximum length."""
        return self._room.could_hold(request)

    def has_room(self, request: GenerationRequest, generated: int = 0) -> bool:
        """Return whether the next plan would admit a request."""
        return self.could_hold(request) and self._batch.has_room(request, generated)

    def cancel(self, request_id: str) -> None:
        """End a request at the next call of `reap`."""
        self._table.cancel(request_id)

    def drop(self, request_id: str) -> RequestState:
        """Remove an unfinished request: another gateway continues it.

        Later answers of the verifier for the request are ignored; the caller must release it at the verifier.
        """
        state = self._table.get(request_id)
        self._release(state)
        return state

    def last_waiting(self, count: int) -> list[str]:
        """Return the waiting requests that would be admitted last."""
        return self._batch.queue.last(count)

    def reap(self, now: float) -> list[Progress]:
        """Finish cancelled and overdue requests; call before each plan."""
        ended = self._table.take_cancelled()
        for state in ended:
            self.finish(state, FinishReason.CANCELLED, now)
        while (overdue := self._table.overdue(now)) is not None:
            ended.append(overdue)
            self.finish(overdue, FinishReason.DEADLINE, now)
        return [Progress(state, [], [], state.new_tokens, True) for state in ended]

    def admit(self, now: float) -> tuple[int, dict[str, int]]:
        """Admit waiting requests while there is space.

        Returns:
            number of running requests; context tokens of running requests with speculation, by request id.
        """
        self._batch.admit(now)
        running = self._batch.running.items()
        return len(running), {
            name: len(state.tokens)
            for name, state in running
            if state.request.speculation is not Speculation.OFF
        }

    def plan(self, now: float, max_nodes: int | None = None, worth: TreeWorth = FREE) -> list[StepEntry]:
        """Return the entries of the next step; empty without work.

        Args:
            max_nodes: maximum nodes of a request's tree or chain in this step; None: the budget's.
            worth: thresholds for nodes and levels of this step's trees.
        """
        self._batch.admit(now)
        self._batch.preempt()
        states, limit = list(self._batch.running.values()), self._reading.max_tokens
        return plan_entries(states, self._room, max_nodes, worth, limit)

    def unplannable(self) -> list[tuple[RequestState, Exception]]:
        """Return the requests that cannot be planned even alone, with the exceptions."""
        return unplannable(self._table.states.values(), self._room)

    def take_preempted(self) -> list[str]:
        """Return newly preempted requests. The verifier must release them first."""
        return self._batch.take_preempted()

    def take_admitted(self) -> list[RequestState]:
        """Return newly admitted requests, except requests begun by another gateway."""
        return [state for state in self._batch.take_admitted() if not state.new_tokens]

    def commit(
        self,
        entries: Sequence[StepEntry],
        trees: Mapping[str, TokenTree],
        verdicts: Mapping[str, Verdict],
        now: float,
    ) -> list[Progress]:
        """Apply the verifier's verdicts; return the progress of each advanced request."""
        progress: list[Progress] = []
        for entry in entries:
            verdict = verdicts.get(entry.request_id)
            if verdict is None or not self._table.has(entry.state):
                continue
            moved = self._apply(entry, trees.get(entry.request_id), verdict, now)
            if moved is not None:
                self._stop_at_string(moved, now)
                progress.append(moved)
            if entry.state.finish is not None:
                self._finished(entry.state, now)
        return progress

    def _apply(
        self, entry: StepEntry, tree: TokenTree | None, verdict: Verdict, now: float
    ) -> Progress | None:
        """Apply a verdict. An internal fault ends only that request."""
        try:
            return apply_verdict(entry, tree, verdict, now)
        except Exception as error:
            log.exception("request %s failed: its verdict cannot be applied", entry.request_id)
            reason = FaultError("internal error", error).for_logs
            entry.state.end(FinishReason.ERROR, now, reason, retryable=False)
            return Progress(entry.state, [], [], entry.state.new_tokens, True)

    def _stop_at_string(self, progress: Progress, now: float) -> None:
        """End a request at its first stop string, or at a fault."""
        if self._stops is None:
            return
        try:
            keep = self._stops.find(progress.request_id, progress.tokens, last=progress.final)
        except Exception as error:
            request_id = progress.request_id
            reason = "request %s failed: searching its text for stop strings failed"
            log.exception(reason, request_id, extra=about(request_id))
            progress.cut(0)
            progress.final = True
            reason = FaultError("internal error", error).for_logs
            progress.state.end(FinishReason.ERROR, now, reason, retryable=False)
            return
        if keep is not None:
            progress.cut(keep)
            progress.final = True
            progress.state.end(FinishReason.STOP_STRING, now)

    def fail(
        self, states: Sequence[RequestState], message: str, now: float, retryable: bool = True
    ) -> list[Progress]:
        """End requests with an error; `retryable`: sending them again may succeed.

        Finished and dropped requests stay unchanged.
        """
        failed = [state for state in states if self._table.has(state)]
        for state in failed:
            state.end(FinishReason.ERROR, now, message, retryable)
            self._finished(state, now)
        return [Progress(state, [], [], state.new_tokens, True) for state in failed]

    def finish(self, state: RequestState, reason: FinishReason, now: float) -> None:
        """Record the reason of a request's end; remove the request."""
        state.end(reason, now)
        if self._table.has(state):
            self._finished(state, now)

    def _finished(self, state: RequestState, now: float) -> None:
        self._rate.finish(now)
        self._release(state)

    def _check_room(self, request: GenerationRequest, now: float) -> None:
        if (bound := self._room.bound_met(request)) is not None:
            raise request.too_long(f"over {bound}")
        full = self._batch.queue.full_for(request.caller, self._limits.max_waiting)
        if full:
            raise ExhaustedError(full, self._rate.hint(now))

    def _add(self, state: RequestState, now: float) -> None:
        if not len(self._table):
            self._rate.begin(now)
        self._table.add(state)
        self._batch.queue.push(state)

    def _release(self, state: RequestState) -> None:
        self._table.remove(state)
        self._batch.remove(state)
        if self._stops is not None:
            self._stops.forget(state.request.request_id)
