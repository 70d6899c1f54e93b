"""The node budget that the verifier's passes allow. Pure."""

import numpy as np

from specinfer.planning.pass_times import PassCurve
from specinfer.scheduling.limits import NodeBudget


def derive_budget(
    curve: PassCurve,
    max_batch: int,
    max_tree_nodes: int,
    max_step_tokens: int,
    per_request: int = 0,
    per_step: int = 0,
) -> NodeBudget:
    """The budget that the passes allow: the nodes that bring most tokens per second in a very predictable
    text (a token accepted with every doubling, twice what is usual), if all but the pass takes as long as a
    pass without trees.

    Args:
        max_batch: most requests of a step.
        max_tree_nodes: most nodes of one tree that the verifier accepts.
        max_step_tokens: most tokens of a step that it accepts.
        per_request, per_step: the operator's; 0 derives them.
    """
    if not per_request:
        per_request = _best(curve, 1, min(max_tree_nodes, max_step_tokens - 1))
    per_request = min(per_request, max_tree_nodes)
    if not per_step:
        batches = [1 << i for i in range(max_batch.bit_length())] + [max_batch]
        most = [(b, min(b * per_request, max_step_tokens - b)) for b in batches if b <= max_batch]
        per_step = max([per_request, *(_best(curve, b, nodes) for b, nodes in most if nodes > 0)])
    return NodeBudget(per_request, per_step, max_step_tokens)


def _best(curve: PassCurve, batch: int, most: int) -> int:
    tokens = batch * (1 + np.log2(1 + np.arange(most + 1) / batch))
    seconds = curve.at(batch) + curve.between(batch, batch + most)
    return int(np.argmax(tokens / seconds))
