"""Trained speculators of every kind, which `speculators_model_type` of a checkpoint names."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from specinfer.errors import IncompatibleError
from specinfer.model.weights.draft_checkpoint import KIND, DraftModel, algorithm_of, load_ssm
from specinfer.model.weights.eagle_checkpoint import EagleSource, load_eagle
from specinfer.model.weights.heads_checkpoint import BlockwiseSource, HeadsSource, MedusaSource, load_heads
from specinfer.model.weights.published.dflash import BlockSource, DFlashSource, DSparkSource, load_block_draft
from specinfer.model.weights.published.mtp import MtpSource, load_mtp
from specinfer.model.weights.published.peagle import PEagleSource, load_peagle

PublishedDraft: TypeAlias = BlockSource | PEagleSource | MtpSource
Draft: TypeAlias = DraftModel | EagleSource | HeadsSource | PublishedDraft

_LOADERS: dict[str, Callable[[Path, Path], Draft]] = {
    DraftModel.algorithm: load_ssm,
    EagleSource.algorithm: load_eagle,
    MedusaSource.algorithm: partial(load_heads, MedusaSource),
    BlockwiseSource.algorithm: partial(load_heads, BlockwiseSource),
    DFlashSource.algorithm: partial(load_block_draft, DFlashSource),
    DSparkSource.algorithm: partial(load_block_draft, DSparkSource),
    PEagleSource.algorithm: load_peagle,
    MtpSource.algorithm: load_mtp,
}


def load_draft(directory: Path, target_directory: Path) -> Draft:
    """Read a checkpoint of any kind.

    Raises:
        IncompatibleError: if nothing here reads its kind, or if it was trained for another target.
    """
    algorithm = algorithm_of(directory)
    if not isinstance(algorithm, str) or algorithm not in _LOADERS:
        known = ", ".join(_LOADERS)
        raise IncompatibleError(f"{directory}: {KIND} = {algorithm!r} must be one of {known}")
    return _LOADERS[algorithm](directory, target_directory)
