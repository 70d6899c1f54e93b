"""What each running request gets of a step: how many of its committed tokens are read, how large a tree may
follow. Pure.

Prompts are read in chunks, so that a long one delays the others by at most one chunk per step. Priorities
come first, then callers take turns: the second prompt of a caller is read after the first of every other.
"""

from collections import Counter
from collections.abc import Sequence

from gateway.requests.budget import split_budget
from gateway.requests.limits import SchedulerLimits
from gateway.requests.request import RequestState, Speculation
from gateway.requests.room import CacheRoom
from gateway.requests.step import StepEntry
from specinfer.tree import TreeLimits


def plan_entries(
    states: Sequence[RequestState], room: CacheRoom, most_nodes: int | None, least_reach: float
) -> list[StepEntry]:
    """The entries of a step; requests whose prompts have to wait for another step have none."""
    limits = room.limits
    lengths = delta_lengths(states, limits)
    free = limits.max_step_tokens - sum(lengths)
    wanted = [_wanted_nodes(state, room, most_nodes) for state in states]
    entries: list[StepEntry] = []
    for state, length, share in zip(states, lengths, split_budget(room.budget, wanted), strict=True):
        if length == 0:
            continue
        final = length == state.pending
        nodes = min(share, free) if final else 0
        free -= nodes
        entries.append(_entry(state, length, final, _tree_limits(state, nodes, limits, least_reach)))
    return entries


def delta_lengths(states: Sequence[RequestState], limits: SchedulerLimits) -> list[int]:
    """How many of its tokens that the verifier does not hold each request sends; 0: it has to wait.

    One token is sent in any case. More than one shares the chunk.
    """
    lengths = [min(state.pending, 1) for state in states]
    chunk = max(0, min(limits.prefill_chunk, limits.max_step_tokens - len(states)))
    for index in _by_turns(states, [i for i, state in enumerate(states) if state.pending > 1]):
        lengths[index] = min(states[index].pending, chunk)
        chunk -= lengths[index]
    return lengths


def _by_turns(states: Sequence[RequestState], prompts: list[int]) -> list[int]:
    """Indices of requests with prompts to read, in the order in which they are read."""
    turns: Counter[str] = Counter()
    order: list[tuple[int, int, tuple[float, int], int]] = []
    for index in sorted(prompts, key=lambda i: (-states[i].request.priority, states[i].place)):
        request = states[index].request
        order.append((-request.priority, turns[request.caller], states[index].place, index))
        turns[request.caller] += 1
    return [index for *_, index in sorted(order)]


def _wanted_nodes(state: RequestState, room: CacheRoom, most_nodes: int | None) -> int:
    """A drafted token is only of use if it and the bonus token may still be generated."""
    nodes = room.most_nodes(state.request) if state.remaining > 1 else 0
    return nodes if most_nodes is None else min(nodes, most_nodes)


def _tree_limits(state: RequestState, nodes: int, limits: SchedulerLimits, least_reach: float) -> TreeLimits:
    sequence = state.request.speculation is Speculation.SEQUENCE
    depth = limits.sequence_length if sequence else limits.tree_depth
    return TreeLimits(nodes, min(depth, state.remaining - 1), 1 if sequence else None, least_reach)


def _entry(state: RequestState, length: int, final: bool, limits: TreeLimits) -> StepEntry:
    base = state.verifier_len
    return StepEntry(state, base, tuple(state.tokens[base : base + length]), final, limits)
