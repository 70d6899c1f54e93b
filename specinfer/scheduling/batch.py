"""Admit and preempt requests, and divide a step's tokens among them. Pure.

Invariant: after `preempt`, the next step of the running requests fits into the cache, or only one request
runs. The earliest running request of the highest priority is never preempted, so that it finishes.

A step reads at most one chunk of prompt tokens, which at most doubles the time of a step in which other requests
decode. The chunk is given to the highest priority first; within a priority to callers in equal shares; within a share
to the earliest prompts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from specinfer.scheduling.limits import CacheRoom, SchedulerLimits, fair_shares
from specinfer.scheduling.queue import WaitingQueue
from specinfer.scheduling.request import GenerationRequest, RequestState


class RunningBatch:
    """Running requests in order of admission, and the queue of waiting requests."""

    def __init__(self, room: CacheRoom) -> None:
        self._room, self._limits = room, room.limits
        self.queue = WaitingQueue()
        self.running: dict[str, RequestState] = {}
        self._preempted: list[str] = []
        self._admitted: list[RequestState] = []

    def has_room(self, request: GenerationRequest, generated: int) -> bool:
        """Return whether a request would be admitted at once."""
        admitted = [*self.running.values(), *self.queue]
        if len(admitted) >= self._limits.max_batch:
            return False
        used = sum(self._room.to_admit(state.request, len(state.tokens)) for state in admitted)
        needed = self._room.to_admit(request, len(request.prompt) + generated)
        return not admitted or used + needed <= self._limits.kv_capacity_tokens

    @property
    def cache_tokens(self) -> int:
        """Cache tokens that running requests need in their next step."""
        return sum(self._room.of(state) for state in self.running.values())

    @property
    def spare(self) -> int:
        """Number of additional requests that could run at average cache use."""
        admitted = [*self.running.values(), *self.queue]
        places = max(0, self._limits.max_batch - len(admitted))
        used = sum(self._room.to_admit(state.request, len(state.tokens)) for state in admitted)
        free = max(0, self._limits.kv_capacity_tokens - used)
        return min(places, free * len(admitted) // used) if admitted else places

    def remove(self, state: RequestState) -> None:
        if self.running.pop(state.request.request_id, None) is None:
            self.queue.remove(state)
        else:
            self.queue.leave(state)

    def admit(self, now: float) -> None:
        """Start waiting requests while there is space."""
        if not len(self.queue):
            return
        while (state := self.queue.first()) is not None:
            if (leaving := self._leaving_for(state)) is None:
                return
            for other in leaving:
                self._wait_again(other)
            self.queue.admit(state)
            if state.admitted_at is None:
                state.admitted_at = now
                self._admitted.append(state)
            self.running[state.request.request_id] = state

    def preempt(self) -> None:
        """Return running requests to the queue until the others fit the cache."""
        used = self.cache_tokens
        while used > self._limits.kv_capacity_tokens and len(self.running) > 1:
            state = self._cheapest_to_preempt(used - self._limits.kv_capacity_tokens)
            used -= self._room.of(state)
            self._wait_again(state)

    def _leaving_for(self, state: RequestState) -> list[RequestState] | None:
        """Return the requests to preempt for another; None: it must wait.

        Requests leave only for a caller without running requests, and only those of callers with several: so no
        caller takes the whole batch. The cheapest of the caller with the most leaves first.
        """
        needed = sum(map(self._to_admit, (state, *self.running.values())))
        leaving, kept = list[RequestState](), dict(self.running)
        running = Counter([one.request.caller for one in kept.values()])
        while len(kept) >= self._limits.max_batch or (kept and needed > self._limits.kv_capacity_tokens):
            oldest = min(kept.values(), key=self._age)
            candidates = [
                one
                for one in kept.values()
                if one is not oldest
                and running[one.request.caller] > 1
                and one.request.priority <= state.request.priority
            ]
            if running[state.request.caller] or not candidates:
                return None
            other = max(candidates, key=lambda one: (running[one.request.caller], -one.verifier_len))
            leaving.append(kept.pop(other.request.request_id))
            running[other.request.caller] -= 1
            needed -= self._to_admit(other)
        return leaving

    def _to_admit(self, state: RequestState) -> int:
        return self._room.to_admit(state.request, len(state.tokens))

    def _wait_again(self, state: RequestState) -> None:
        """Return a running request to the queue; its context is computed again."""
        state.verifier_len = 0
        state.preemptions += 1
        self.remove(state)
        self.queue.push(state)
        self._preempted.append(state.request.request_id)

    def take_preempted(self) -> list[str]:
        preempted, self._preempted = self._preempted, []
        return preempted

    def take_admitted(self) -> list[RequestState]:
        """Return the requests admitted for the first time since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def _cheapest_to_preempt(self, excess: int) -> RequestState:
        """Return the cheapest request whose preemption frees `excess` tokens.

        The cost is the number of tokens to compute again. Candidates have the lowest priority and the caller
        with the most running requests. If no candidate frees enough, the candidate that frees the most is
        chosen; among equals, the latest.
        """
        *younger, _ = sorted(self.running.values(), key=self._age, reverse=True)
        lowest = max(map(self._class, younger))
        candidates = [state for state in younger if self._class(state) == lowest]
        enough = [state for state in candidates if self._room.of(state) >= excess]
        return (
            min(enough, key=lambda candidate: candidate.verifier_len)
            if enough
            else max(candidates, key=self._room.of)
        )

    def _class(self, state: RequestState) -> tuple[int, int]:
        return -state.request.priority, self.queue.running_of(state.request.caller)

    @staticmethod
    def _age(state: RequestState) -> tuple[int, tuple[float, int]]:
        return -state.request.priority, state.place


PromptLimit = Callable[[int, float], int | None]
"""(rows of decoding requests, mean context of prompt tokens) -> maximum prompt tokens."""


def unlimited(_rows: int, _context: float) -> None:
    """Return None: no limit of prompt tokens."""


def delta_lengths(
    states: Sequence[RequestState],
    limits: SchedulerLimits,
    max_prompt_tokens: Callable[[float], int | None],
) -> list[int]:
    """Return the number of tokens to send per request; 0: none yet.

    A request with one pending token always sends this token. Requests with more share the chunk, which is not empty
    if `max_step_tokens` allows a token for every request.

    Args:
        max_prompt_tokens: maps the mean context of the prompt tokens to their maximum number; None: no limit.
    """
    lengths = [min(state.pending, 1) for state in states]
    prompts = [index for index, state in enumerate(states) if state.pending > 1]
    if not prompts:
        return lengths
    chunk = max(0, min(limits.prefill_chunk, limits.max_step_tokens - (len(states) - len(prompts))))
    limit = max_prompt_tokens(min([_context(states[index], 0) for index in prompts]))
    chunk = chunk if limit is None else min(chunk, limit)
    prompts.sort(key=lambda index: (-states[index].request.priority, states[index].place))
    while True:
        for index, length in _prompt_lengths(chunk, prompts, states):
            lengths[index] = length
        read = sum([lengths[index] for index in prompts])
        weighted = sum([lengths[index] * _context(states[index], lengths[index]) for index in prompts])
        limit = max_prompt_tokens(weighted / read) if read else None
        if limit is None or read <= limit:
            return lengths
        chunk = limit


def _context(state: RequestState, length: int) -> float:
    """Return the mean context of a prompt's next `length` tokens.

    The cached part of a new prompt is unknown: all other tokens are assumed to be cached.
    """
    return (state.verifier_len or state.pending - length) + length / 2


def _prompt_lengths(
    chunk: int, prompts: Sequence[int], states: Sequence[RequestState]
) -> Iterator[tuple[int, int]]:
    """Yield (index, tokens) of prompts in order of priority."""
    for _, level in groupby(prompts, key=lambda index: states[index].request.priority):
        for index, length in _share_chunk(chunk, list(level), states):
            yield index, length
            chunk -= length


def _share_chunk(chunk: int, prompts: list[int], states: Sequence[RequestState]) -> Iterator[tuple[int, int]]:
    """Yield (index, tokens): equal shares for callers, earlier prompts first."""
    callers: dict[str, list[int]] = {}
    for index in prompts:
        callers.setdefault(states[index].request.caller, []).append(index)
    wanted = [sum(states[index].pending for index in indexes) for indexes in callers.values()]
    for indexes, share in zip(callers.values(), fair_shares(chunk, wanted), strict=True):
        for index in indexes:
            length = min(states[index].pending, share)
            share -= length
            yield index, length
