"""DSpark drafts: DFlash's blocks, each guess with a bias by the token before it (a Markov head).

So the tokens of a path fit each other, though the block is read once. The checkpoint's confidence head is
not asked: which nodes are worth verifying follows from the probabilities of the paths.
"""

from specinfer.drafters.feature_rows import PublishedDrafter
from specinfer.model.weights.published.dflash import DSparkSource


class DSparkDrafter(PublishedDrafter):
    """Drafts a tree over a block, level by level."""

    kind = DSparkSource
