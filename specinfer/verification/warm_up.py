"""Warm-up steps before a verifier serves.

The first steps take several times as long as later ones, and the gateway chooses by pass times.
"""

import time
from collections.abc import Callable
from itertools import product

from specinfer.sampling import GREEDY, Sampling
from specinfer.system.progress import progress
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob

_NAME = "warm-up"
_ROUNDS = 3
_SLOW_S = 0.5
"""Seconds of a step from which two steps are enough, as with weights that are read in every pass."""
_SAMPLED = Sampling(temperature=0.8, seed=1)
_SIZES = (0, 2, 4, 8)
"""Node counts of the trees."""


def warm_up(engine: VerifierEngine, clock: Callable[[], float] = time.perf_counter) -> None:
    """Verify trees of several sizes, greedy and sampled.

    Their prompt fills no block of the cache, so that nothing of it stays.
    """
    limits = engine.limits
    most = min(limits.max_nodes, limits.max_step_tokens, limits.max_context_len) - 1
    steps = product((GREEDY, _SAMPLED) * _ROUNDS, _SIZES)
    with progress("warming up"):
        for number, (sampling, nodes) in enumerate(steps):
            started = clock()
            engine.verify([VerifyJob(_NAME, 0, [0], _chain(min(nodes, most)), sampling, prompt_len=1)])
            engine.release([_NAME])
            if number and clock() - started > _SLOW_S:
                return


def _chain(nodes: int) -> TokenTree:
    builder, parent = TreeBuilder(0), 0
    for _ in range(nodes):
        (parent,) = builder.propose_points(parent, [0], [0.5])
    return builder.build()
