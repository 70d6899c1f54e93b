"""MTP drafts: one decoder layer that was trained with the target, over its last hidden state."""

from specinfer.drafters import DrafterOptions
from specinfer.drafters.checkpoint import load_published
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from specinfer.drafters.ssm import shape_of
from specinfer.model.published.runners import mtp_runner
from specinfer.model.weights.published.mtp import MtpSource


class MtpDrafter(FeatureRowsDrafter):
    """Drafts a tree level by level, one pass of the layer each."""

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "MtpDrafter":
        """Load a checkpoint.

        Raises:
            SettingError: naming the bad option.
            IncompatibleError: naming what is not understood, or does not fit the target.
        """
        shape, found = shape_of(options), load_published(options, MtpSource)
        runner = mtp_runner(found.draft, found.borrowed, found.options)
        return cls(runner, found.description, shape, found.draft.token_ids)
