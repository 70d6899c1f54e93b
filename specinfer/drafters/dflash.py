"""DFlash drafts: a block of tokens, all guessed in one pass over the target's hidden states.

A guess does not depend on the tokens before it in the block, so trees grow as those of heads.
"""

from specinfer.drafters.feature_rows import PublishedDrafter
from specinfer.model.weights.published.dflash import DFlashSource


class DFlashDrafter(PublishedDrafter):
    """Drafts a tree of the tokens that are likely at each place of a block."""

    kind = DFlashSource
