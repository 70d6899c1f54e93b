"""DFlash drafts: a block of tokens, all guessed in one pass over the target's hidden states.

A guess does not depend on the tokens before it in the block, so trees grow as those of heads.
"""

from typing import ClassVar, Self

from specinfer.drafters import DrafterOptions
from specinfer.drafters.checkpoint import load_published
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from specinfer.drafters.ssm import shape_of
from specinfer.model.published.runners import BlockRunner
from specinfer.model.weights.published.dflash import BlockSource, DFlashSource


class BlockDrafter(FeatureRowsDrafter):
    """Drafts blocks of one kind."""

    kind: ClassVar[type[BlockSource]]

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Self:
        """Load a checkpoint of its kind.

        Raises:
            SettingError: naming the bad option.
            IncompatibleError: naming what is not understood, or does not fit the target.
        """
        shape, found = shape_of(options), load_published(options, cls.kind)
        runner = BlockRunner.build(found.draft, found.borrowed, found.options)
        return cls(runner, found.description, shape, found.draft.token_ids)


class DFlashDrafter(BlockDrafter):
    """Drafts a tree of the tokens that are likely at each place of a block."""

    kind = DFlashSource
