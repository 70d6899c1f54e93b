"""MTP drafts: one decoder layer that was trained with the target, over its last hidden state."""

from specinfer.drafters.feature_rows import PublishedDrafter
from specinfer.model.weights.published.mtp import MtpSource


class MtpDrafter(PublishedDrafter):
    """Drafts a tree level by level, one pass of the layer each."""

    kind = MtpSource
