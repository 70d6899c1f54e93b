"""Warm-up drafts before a speculator service serves.

The first drafts take several times as long as later ones, and the gateway chooses by draft times.
"""

import logging
import time

from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.sampling import GREEDY, Sampling
from specinfer.statuses import EntryStatus
from specinfer.tree import TreeLimits

log = logging.getLogger(__name__)

_NAME = "warm-up"
_SIZES = (2, 4, 8, 16)
_SAMPLED = Sampling(temperature=0.8, seed=1)
_READ, _COMES = 8, 2
"""Context tokens of the first step, and of each later one."""


def warm_up(engine: SpeculatorEngine) -> None:
    """Draft trees of several sizes, greedy and sampled, and forget the request.

    A failure is only logged: requests meet the same one later, and report it.
    """
    started = time.perf_counter()
    vocab = min([speculator.description.vocab_size or _READ for speculator in engine.drafters])
    base, delta = 0, _READ
    for sampling in (GREEDY, _SAMPLED):
        for nodes in _SIZES:
            tokens = [position % vocab for position in range(base, base + delta)]
            limits = TreeLimits(min(nodes, engine.max_nodes), nodes)
            entry = DraftEntry(_NAME, base, tokens, limits, sampling, sees_noise=False)
            (outcome,) = engine.draft([entry])
            if outcome.status is not EntryStatus.OK:
                log.warning("cannot draft ahead: %s", outcome.message)
                engine.release([_NAME])
                return
            base, delta = outcome.held_len, _COMES
    engine.release([_NAME])
    log.info("drafts were tried in %.0f ms", 1000 * (time.perf_counter() - started))
