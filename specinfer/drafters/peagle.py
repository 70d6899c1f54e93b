"""P-EAGLE drafts: layers of EAGLE-3's kind that guess all depths in one pass.

A guess does not depend on the tokens before it, so trees grow as those of heads.
"""

from specinfer.drafters import DrafterOptions
from specinfer.drafters.checkpoint import load_published
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from specinfer.drafters.ssm import shape_of
from specinfer.model.published.runners import PEagleRunner
from specinfer.model.weights.published.peagle import PEagleSource


class PEagleDrafter(FeatureRowsDrafter):
    """Drafts a tree of the tokens that are likely at each depth."""

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "PEagleDrafter":
        """Load a checkpoint.

        Raises:
            SettingError: naming the bad option.
            IncompatibleError: naming what is not understood, or does not fit the target.
        """
        shape, found = shape_of(options), load_published(options, PEagleSource)
        runner = PEagleRunner.build(found.draft, found.borrowed, found.options)
        return cls(runner, found.description, shape, found.draft.token_ids)
