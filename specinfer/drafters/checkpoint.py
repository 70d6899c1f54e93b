"""Load trained speculators of any kind, and find their targets."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from specinfer.drafters import DrafterDescription, DrafterOptions
from specinfer.errors import IncompatibleError, SettingError
from specinfer.hub import resolve_model
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import verifier_of
from specinfer.model.weights.source import (
    KIND,
    NO_MTP,
    algorithm_of,
    has_own_mtp,
    is_draft_checkpoint,
    is_flat_draft,
)
from specinfer.system.json_files import read_json
from specinfer.text.tokenizer import tokenizer_facts

_LOADERS = {
    "ssm": "specinfer.model.weights.draft_checkpoint:load_ssm",
    "eagle3": "specinfer.drafters.published.eagle3:load_eagle",
    "medusa": "specinfer.drafters.heads_layers:load_medusa",
    "blockwise": "specinfer.drafters.heads_layers:load_blockwise",
    "dflash": "specinfer.drafters.published.flat:load_dflash",
    "dspark": "specinfer.drafters.published.block:load_dspark",
    "peagle": "specinfer.drafters.published.peagle:load_peagle",
    "mtp": "specinfer.drafters.published.mtp:load_mtp",
}
"""Loaders, called with (checkpoint, target), by `speculators_model_type`."""

_OWN = "mtp"
"""Kind of a draft that a model's own checkpoint may contain."""


class Draft(Protocol):
    algorithm: ClassVar[str]
    """Value of `speculators_model_type` in `config.json`."""


D = TypeVar("D", bound=Draft)


@dataclass(frozen=True, slots=True)
class Trained(Generic[D]):
    """A loaded checkpoint with its target."""

    draft: D
    target: Path
    config: ModelConfig
    description: DrafterDescription
    """Description of a drafter of this checkpoint, without its feature layers."""


def load_trained(options: DrafterOptions, kind: type[D]) -> Trained[D]:
    """Load the checkpoint that `options.model` names."""
    directory = resolve_model(options.model)
    target, draft = directory, _own_draft(directory, options) if kind.algorithm == _OWN else None
    if draft is None:
        if not is_draft_checkpoint(directory):
            raise SettingError(
                *("model", options.model),
                f"is not a trained speculator: its config.json must have {KIND} = {kind.algorithm!r}",
            )
        target = _target_of(directory, options.target)
        draft = load_draft(directory, target)
    if not isinstance(draft, kind):
        mismatch = (
            f"its config.json has {KIND} = {draft.algorithm!r}: must be {kind.algorithm!r} for this drafter"
        )
        raise SettingError("model", options.model, mismatch)
    config, facts = load_config(target), tokenizer_facts(target)
    description = DrafterDescription(options.model, facts.vocab_size, facts.fingerprint, config.max_positions)
    return Trained(draft, target, config, description)


def _own_draft(directory: Path, options: DrafterOptions) -> Draft | None:
    """Return the draft in a whole model's checkpoint, else None."""
    if is_draft_checkpoint(directory):
        return None
    if not has_own_mtp(directory):
        raise SettingError("model", options.model, NO_MTP)
    if options.target and resolve_model(options.target) != directory:
        raise SettingError("model", options.model, f"contains a draft for itself, not for {options.target}")
    from specinfer.drafters.published.own_mtp import load_own_mtp

    return load_own_mtp(directory, options.vocabulary)


def load_draft(directory: Path, target_directory: Path) -> Draft:
    """Read a checkpoint of any kind."""
    algorithm = algorithm_of(directory)
    if not isinstance(algorithm, str) or algorithm not in _LOADERS:
        known = ", ".join(_LOADERS)
        raise IncompatibleError(f"{directory}: {KIND} = {algorithm!r} must be one of {known}")
    module, name = _LOADERS[algorithm].split(":")
    draft: Draft = getattr(import_module(module), name)(directory, target_directory)
    return draft


def _target_of(directory: Path, given: str) -> Path:
    """Return the directory of a checkpoint's target.

    In the flat layout (`published/flat.py`) the checkpoint names no target; `given` is the target then.
    """
    if is_flat_draft(read_json(directory / "config.json")):
        if not given:
            raise SettingError(
                "target", given, f"must be the model of the draft {directory}, which does not name its model"
            )
        return resolve_model(given)
    name = verifier_of(directory)
    try:
        return resolve_model(name)
    except SettingError as error:
        raise SettingError("model", str(directory), f"is for verifier {name}: {error}") from error
