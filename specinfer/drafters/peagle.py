"""P-EAGLE drafts: layers of EAGLE-3's kind that guess all depths in one pass.

A guess does not depend on the tokens before it, so trees grow as those of heads.
"""

from specinfer.drafters.feature_rows import PublishedDrafter
from specinfer.model.weights.published.peagle import PEagleSource


class PEagleDrafter(PublishedDrafter):
    """Drafts a tree of the tokens that are likely at each depth."""

    kind = PEagleSource
