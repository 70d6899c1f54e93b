"""Compute the gain of trees over passes of random weights.

A model with random weights accepts no drafts, so acceptance comes from another model: tokens per step by nodes of the
real pair (Qwen2.5-Coder 1.5B and 0.5B, batch 1, one process) in `benchmarks/results/planner-choices.md`.
"""

from collections.abc import Mapping

import numpy as np

from benchmarks.tables import head, line

TOKENS_A_STEP = {0: 1.0, 1: 1.88, 2: 2.62, 4: 3.84, 8: 5.29}
"""Measured tokens per step by nodes, the root excluded."""
NOTE = (
    "Computed, not measured: the weights are random, and the acceptance is borrowed from the real pair "
    "([tokens a step by nodes](planner-choices.md), between them in proportion). A pass of so many rows scores "
    "the last token and a tree of one node less. Drafting costs nothing here, so these are upper bounds."
)


def tokens_a_step(nodes: int) -> float:
    """Return the pair's tokens per step with trees of `nodes` nodes.

    Raises:
        ValueError: if `nodes` exceeds the measured range.
    """
    if not 0 <= nodes <= max(TOKENS_A_STEP):
        raise ValueError(f"nodes = {nodes}: must be 0 to {max(TOKENS_A_STEP)}")
    return float(np.interp(nodes, [*TOKENS_A_STEP], [*TOKENS_A_STEP.values()]))


def gains_table(seconds: Mapping[int, float]) -> list[str]:
    """Return a table of the speed of trees over plain decoding.

    `seconds` are the times of passes by rows. Without a pass of one row, which is plain decoding, the table is empty.
    """
    if 1 not in seconds:
        return []
    lines = [NOTE, "", *head(["nodes", "tokens a step", "ms", "over plain decoding"], "rows")]
    for rows in sorted(seconds):
        if rows - 1 <= max(TOKENS_A_STEP):
            tokens = tokens_a_step(rows - 1)
            gain = tokens * seconds[1] / seconds[rows]
            cells = [str(rows - 1), f"{tokens:.2f}", f"{1000 * seconds[rows]:.1f}", f"{gain:.2f}x"]
            lines.append(line(str(rows), cells))
    return lines
