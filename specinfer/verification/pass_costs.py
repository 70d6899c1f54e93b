"""Warms the model up, and measures seconds of passes for the planner.

The first steps of a process take several times as long as later ones.
"""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, product
from statistics import median

from specinfer.model.arrays import as_floats
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.model.threads import pass_threads
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.system.derived import derived_path, store_value, stored_value
from specinfer.system.machine import processor_name
from specinfer.system.progress import progress
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob

log = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 6, 7, 8, 10, 12, 13, 16, 18, 19, 24, 32, 48, 64)
"""Numbers of rows (tokens and nodes) of measured passes.

Dense kernels compute six rows at a time: 7 and 13 rows cost most per row.
"""
_CONTEXT = 256
"""Number of context tokens before the measured rows."""
_FIRST = 16
"""Number of context tokens before the first pass (if slow: all passes)."""
_MAX_ROUNDS = 8
_LARGE = 32
"""Passes of at least this many rows are measured `_ROUNDS_OF_LARGE` times."""
_ROUNDS_OF_LARGE = 2
_HEAVY_S = 0.01
"""If a one-row pass takes more seconds, only `_POWERS` are measured."""
_POWERS = (1, 2, 4, 8, 16, 32)
_SLOW_S = 0.5
"""If a one-row pass takes more seconds, only `_FEW` are measured."""
_FEW = (1, 16, 64)
_CHEAP = 2.0
"""Maximum time of the largest measured pass, relative to a one-row pass."""
_MOVED = 4 / 3
"""Minimum ratio of two times of a size that shows a disturbance."""
_FELL = 0.8
"""Maximum ratio to a smaller pass's time that shows a disturbance."""
_AGAIN = 3
"""Maximum number of repeated measurements."""

_LONG_CONTEXT, _MIN_LONG_CONTEXT = 4096, 1024
"""Number of context tokens for measuring the cost of context: preferred, minimum."""
_ROWS_OF_CONTEXT, _ROUNDS_OF_CONTEXT = 16, 2
"""Maximum rows of passes after a long context, and number of passes."""

Costs = dict[int, float]
"""Number of rows -> seconds of a pass."""


def known_costs(
    runner: ModelRunner, fingerprint: str, max_tokens: int = _SIZES[-1]
) -> tuple[list[tuple[int, float]], float]:
    """Return (rows, seconds) of passes, and the seconds that a context token adds to a row.

    They are measured once for a model, kernels, processor and number of threads; times that fall with more rows are not
    kept.

    Args:
        runner: the model.
        fingerprint: fingerprint of the model's files and formats; empty: measure at every start.
        max_tokens: see `measure_passes`.
    """

    def measure() -> tuple[list[tuple[int, float]], float]:
        costs = measure_passes(runner, max_tokens=max_tokens)
        return costs, measure_context(runner, costs)

    blocks = runner.features.blocks
    if not fingerprint or blocks is None:
        return measure()
    capacity = min(
        runner.cache.capacity_tokens, _LONG_CONTEXT + _CONTEXT + max_tokens
    )  # more changes nothing
    sizes = [max_tokens, capacity, pass_threads()]
    path = derived_path("passes", [fingerprint, blocks.block_layout, processor_name(), *map(str, sizes)])
    kept = stored_value(path)
    if kept is None:
        kept = measure()
        if not _falls(dict(kept[0])):
            store_value(path, kept)
    return [(int(size), float(seconds)) for size, seconds in kept[0]], float(kept[1])


def measure_passes(
    runner: ModelRunner,
    budget_s: float = 0.6,
    clock: Callable[[], float] = time.perf_counter,
    max_tokens: int = _SIZES[-1],
) -> list[tuple[int, float]]:
    """Measure passes after a context of 256 tokens; return (rows, seconds).

    All sizes are measured at least twice, in `budget_s` / 2 each, and again while two results differ by more than a
    third or a larger size is faster: another process was busy. Disturbances only add time, so each size's minimum
    counts. Above 64 rows sizes are doubled, up to `max_tokens` (the maximum of a step), while passes stay cheap. Slow
    passes, as of offloaded weights, are measured once, in few sizes and after a shorter context.

    The planner corrects a common factor while it serves (`specinfer.planning.costs`), but not errors of single
    sizes.
    """
    with progress("measuring passes"):
        costs = list(_measure(runner, budget_s, clock, max_tokens).items())
    log.info("passes take %s tokens", ", ".join(f"{1000 * s:.1f} ms for {n}" for n, s in costs))
    return costs


def measure_context(
    runner: ModelRunner,
    costs: Sequence[tuple[int, float]],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds that a context token adds to a pass's row.

    Compares passes after a long context of empty keys and values with `costs`, (rows, seconds) after a short one.
    0 if such a context does not fit in the cache, or if the cache has recurrent states or a window.
    """
    cache = runner.cache
    rows = max(size for size, _ in costs if size <= _ROWS_OF_CONTEXT)
    context = min(_LONG_CONTEXT, cache.free_tokens - 2 * rows, runner.config.max_positions - rows)
    if context < _MIN_LONG_CONTEXT or cache.states is not None or cache.window is not None:
        return 0.0
    short = dict(costs)[rows]
    sequence = runner.open()
    try:
        cache.lengthen(sequence, context)
        segment = _nodes(sequence, rows, runner.config.vocab_size)
        rounds = 1 if short > _SLOW_S else _ROUNDS_OF_CONTEXT
        seconds = min(_one_pass(runner, segment, clock) for _ in range(rounds))
    finally:
        cache.release(sequence)
    added = max(0.0, seconds - short) / (rows * context)
    log.info("each token of context adds %.2f us to each token of a pass", 1e6 * added)
    return added


def _measure(runner: ModelRunner, budget_s: float, clock: Callable[[], float], max_tokens: int) -> Costs:
    sequence = runner.open()
    try:
        positions = min(runner.cache.capacity_tokens, runner.config.max_positions)
        max_size = min(_SIZES[-1], positions // 2)
        context = min(_CONTEXT, positions - max_size)
        first = min(_FIRST, context)
        runner.run([Segment(sequence, [1] * first)])

        def one_pass(size: int) -> float:
            return _one_pass(runner, _nodes(sequence, size, runner.config.vocab_size), clock)

        seconds = min(one_pass(1), one_pass(1))
        slow, heavy = seconds > _SLOW_S, seconds > _HEAVY_S
        if not heavy and context > first:
            runner.run([Segment(sequence, [1] * (context - first))])
        sizes = [size for size in (_FEW if slow else _POWERS if heavy else _SIZES) if size <= max_size]
        if slow:
            costs = {size: one_pass(size) for size in sizes}
        else:
            costs = undisturbed(lambda: _in_turns(one_pass, sizes, budget_s / 2, clock))
        largest, size = min(max_tokens, positions - context), max(costs)
        while size < largest and costs[size] < _CHEAP * costs[1]:
            size = min(2 * size, largest)
            costs[size] = median([one_pass(size) for _ in range(1 if slow else 2)])
    finally:
        runner.cache.release(sequence)
    return costs


def undisturbed(measure: Callable[[], Costs]) -> Costs:
    """Measure until two successive results agree; return each size's minimum."""
    least = latest = measure()
    for number in range(_AGAIN):
        before, latest = latest, measure()
        least = {size: min(seconds, latest[size]) for size, seconds in least.items()}
        if _agree(before, latest) and not _falls(least):
            return least
        if number == 0:
            log.info("times of passes vary; measuring again")
    log.warning("times of passes still vary (is the machine busy?): speculation may be planned badly")
    return least


def _agree(before: Costs, latest: Costs) -> bool:
    pairs = [(before[size], latest[size]) for size in before]
    return all(max(pair) <= _MOVED * min(pair) for pair in pairs)


def _falls(costs: Costs) -> bool:
    ordered = [costs[size] for size in sorted(costs)]
    return any(
        after < _FELL * highest for after, highest in zip(ordered, accumulate(ordered, max), strict=True)
    )


def _in_turns(
    one_pass: Callable[[int], float], sizes: Sequence[int], budget_s: float, clock: Callable[[], float]
) -> Costs:
    """Return the median seconds of each size, from rounds over all sizes.

    A disturbance then affects all sizes. At least one round is run; no round begins after `budget_s` seconds.
    """
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    until = clock() + budget_s
    for number in range(_MAX_ROUNDS):
        if number and clock() > until:
            break
        for size, times in seconds.items():
            if size < _LARGE or number < _ROUNDS_OF_LARGE:
                times.append(one_pass(size))
    return {size: median(times) for size, times in seconds.items()}


def _nodes(sequence: KVSequence, size: int, vocabulary: int) -> Segment:
    """Return a segment of `size` nodes, all children of the root.

    Their tokens differ: rows of equal tokens would share experts, and so be faster.
    """
    return Segment(sequence, (), [node % vocabulary for node in range(size)], [-1] * size)


def _one_pass(runner: ModelRunner, segment: Segment, clock: Callable[[], float]) -> float:
    """Return the seconds until a pass's logits are on the host."""
    started = clock()
    as_floats(runner.run([segment])[0][-1, :1])
    seconds = clock() - started
    runner.cache.commit(segment.sequence, ())
    return seconds


_NAME = "warm-up"
_WARM_ROUNDS = 3
_WARM_UP_S = 0.2
"""Seconds after which the warm-up ends, but not before two steps."""
_SAMPLED = Sampling(temperature=0.8, seed=1)
_TREE_NODES = (0, 2, 4, 8)


def warm_up(engine: VerifierEngine, clock: Callable[[], float] = time.perf_counter) -> None:
    """Run steps with trees of several sizes, greedy and sampled.

    Their prompt is shorter than a block, so that none of its blocks stays in the cache.
    """
    limits = engine.limits
    max_nodes = min(limits.max_nodes, limits.max_step_tokens, limits.max_context_len) - 1
    steps = product((GREEDY, _SAMPLED) * _WARM_ROUNDS, _TREE_NODES)
    with progress("warming up"):
        started = clock()
        for number, (sampling, nodes) in enumerate(steps):
            engine.verify([VerifyJob(_NAME, 0, [0], _chain(min(nodes, max_nodes)), sampling, prompt_len=1)])
            engine.release([_NAME])
            if number and clock() - started > _WARM_UP_S:
                return


def _chain(nodes: int) -> TokenTree:
    builder, parent = TreeBuilder(0), 0
    for _ in range(nodes):
        (parent,) = builder.propose_points(parent, [0], [0.5])
    return builder.build()
