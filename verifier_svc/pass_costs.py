"""How long passes take by their tokens, measured before serving: where the gateway's planner starts from."""

import logging
import time
from collections.abc import Callable
from statistics import median

from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner

log = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 6, 7, 8, 10, 12, 13, 16, 18, 19, 24, 32, 48, 64)
"""The kernels take six rows at a time, so the seventh, the thirteenth and so on cost most."""
_CONTEXT = 256
_MOST_ROUNDS, _LARGE, _ROUNDS_OF_LARGE = 15, 32, 2
"""Passes over many tokens take long, and steps are rarely that large."""
_SLOW_S, _FEW = 0.5, (1, 16, 64)
"""Where a pass takes so long, as with offloaded weights, few sizes are measured: starting must not take
minutes."""
_CHEAP = 2.0
"""Times a pass over one token up to which larger passes are measured: a GPU's 512 nodes may cost as much as
one."""


def measure_passes(
    runner: ModelRunner,
    budget_s: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
    most_tokens: int = _SIZES[-1],
) -> list[tuple[int, float]]:
    """(tokens, seconds) of passes behind a context of 256 tokens, or what fits a smaller model or cache.

    The sizes take turns, so that a slow moment of the machine hits all of them; the median of each counts. At
    least one round is run, and no further one once the time is up. Beyond 64 tokens sizes are doubled up to
    `most_tokens`, the most that the verifier accepts in a step, as long as passes stay cheap; that many is
    measured last. Where a pass is slow it is one round of few sizes.

    A second is enough: its medians came within 2 % of those of two seconds, those of half a second within 5 %
    (default model, bfloat16, two cores with AVX-512).
    """
    sequence = runner.open()
    try:
        positions = min(runner.cache.capacity_tokens, runner.config.max_positions)
        most = min(_SIZES[-1], positions // 2)
        context = min(_CONTEXT, positions - most)
        runner.forward([Segment(sequence, [1] * context)])
        slow = _one_pass(runner, _nodes(sequence, 1), clock) > _SLOW_S
        found: dict[int, list[float]] = {size: [] for size in (_FEW if slow else _SIZES) if size <= most}
        until = clock() + budget_s
        for number in range(1 if slow else _MOST_ROUNDS):
            if number and clock() > until:
                break
            for size, times in found.items():
                if size < _LARGE or number < _ROUNDS_OF_LARGE:
                    times.append(_one_pass(runner, _nodes(sequence, size), clock))
        largest, size = min(most_tokens, positions - context), max(found)
        while size < largest and min(found[size]) < _CHEAP * median(found[1]):
            size = min(2 * size, largest)
            rounds = 1 if slow else 2
            found[size] = [_one_pass(runner, _nodes(sequence, size), clock) for _ in range(rounds)]
    finally:
        runner.cache.release(sequence)
    costs = [(size, median(times)) for size, times in found.items()]
    log.info("passes take %s", ", ".join(f"{1000 * s:.1f} ms for {n}" for n, s in costs))
    return costs


def _nodes(sequence: KVSequence, size: int) -> Segment:
    """So many nodes below the root."""
    return Segment(sequence, (), [1] * size, [-1] * size)


def _one_pass(runner: ModelRunner, segment: Segment, clock: Callable[[], float]) -> float:
    """Its time; nothing of it stays in the cache. One logit is fetched: a device may be at work still."""
    started = clock()
    runner.forward([segment])[0][-1, :1].cpu()
    seconds = clock() - started
    runner.cache.commit(segment.sequence, ())
    return seconds
