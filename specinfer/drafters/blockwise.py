"""Blockwise parallel decoding: k heads propose one chain; the pass that verifies it predicts the next one.

The first token of a block is the target's own choice, the root; with k heads a block has k + 1 tokens, and in
the ideal case m tokens take one pass for the prompt and m / (k + 1) more. Heads with a Markov head know what they
branch from, and grow trees.
"""

from dataclasses import replace

from specinfer.drafters.medusa import HeadsDrafter
from specinfer.model.weights.heads_checkpoint import BlockwiseSource
from specinfer.tree import TreeLimits


class BlockwiseDrafter(HeadsDrafter):
    """Drafts a chain of each head's first token, or a tree."""

    kind = BlockwiseSource

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the limits of a single branch, for any requested limits; of a tree with a Markov head."""
        return super().limits(asked) if self._runner.knows_paths else replace(asked, width=1)
