"""Divide a step's tokens among requests. Pure.

A step reads at most one chunk of prompt tokens, which at most doubles the time of a step in which other requests
decode. The chunk is given to the highest priority first; within a priority to callers in equal shares; within a share
to the earliest prompts.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from specinfer.scheduling.limits import SchedulerLimits, fair_shares
from specinfer.scheduling.request import RequestState

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
