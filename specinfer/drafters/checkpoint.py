"""Common parts of drafters with a trained checkpoint: its kind, its target, its description."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from specinfer.drafters import DrafterDescription, DrafterOptions
from specinfer.errors import SettingError
from specinfer.hub import resolve_model
from specinfer.model.weights.config import ModelConfig, load_config
from specinfer.model.weights.draft_checkpoint import KIND, is_draft_checkpoint, verifier_of
from specinfer.model.weights.drafts import Draft, load_draft
from specinfer.tokenizer import Tokenizer

D = TypeVar("D", bound=Draft)


@dataclass(frozen=True, slots=True)
class Trained(Generic[D]):
    """A checkpoint and its target."""

    draft: D
    target: Path
    """Directory of the target."""
    config: ModelConfig
    """Configuration of the target."""
    description: DrafterDescription
    """Description of a drafter that reads tokens only."""


def load_trained(options: DrafterOptions, kind: type[D]) -> Trained[D]:
    """Load the checkpoint that `options.model` names.

    Raises:
        SettingError: if it is no checkpoint of this kind.
        IncompatibleError: if its kind is unknown, or if its target has changed.
    """
    directory = resolve_model(options.model)
    if not is_draft_checkpoint(directory):
        raise SettingError("model", options.model, f"is no trained speculator ({KIND} = {kind.algorithm!r})")
    target = resolve_model(verifier_of(directory))
    draft = load_draft(directory, target)
    if not isinstance(draft, kind):
        found = f"has {KIND} = {draft.algorithm!r}, this drafter reads {kind.algorithm!r}"
        raise SettingError("model", options.model, found)
    config, tokenizer = load_config(target), Tokenizer.load(target)
    description = DrafterDescription(
        options.model, tokenizer.vocab_size, tokenizer.fingerprint(), config.max_positions
    )
    return Trained(draft, target, config, description)
