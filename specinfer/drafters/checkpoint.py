"""Common parts of drafters with a trained checkpoint: its kind, its target, its description."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from specinfer.drafters import DrafterDescription, DrafterOptions
from specinfer.errors import SettingError
from specinfer.hub import resolve_model
from specinfer.model.options import RunnerOptions, check_numbers, check_options
from specinfer.model.published.memory import Borrowed
from specinfer.model.weights.config import ModelConfig, load_config
from specinfer.model.weights.draft_checkpoint import KIND, is_draft_checkpoint, verifier_of
from specinfer.model.weights.drafts import Draft, PublishedDraft, load_draft
from specinfer.model.weights.families import open_weights
from specinfer.tokenizer import Tokenizer

D = TypeVar("D", bound=Draft)
P = TypeVar("P", bound=PublishedDraft)


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
    target = _target_of(directory)
    draft = load_draft(directory, target)
    if not isinstance(draft, kind):
        found = f"has {KIND} = {draft.algorithm!r}, this drafter reads {kind.algorithm!r}"
        raise SettingError("model", options.model, found)
    config, tokenizer = load_config(target), Tokenizer.load(target)
    description = DrafterDescription(
        options.model, tokenizer.vocab_size, tokenizer.fingerprint(), config.max_positions
    )
    return Trained(draft, target, config, description)


def _target_of(directory: Path) -> Path:
    """Return the directory of the target that a checkpoint names."""
    name = verifier_of(directory)
    try:
        return resolve_model(name)
    except SettingError as error:
        raise SettingError("model", str(directory), f"is for verifier {name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Published(Generic[P]):
    """A checkpoint in a layout of the `speculators` library, and what it takes to run it."""

    draft: P
    borrowed: Borrowed
    description: DrafterDescription
    options: RunnerOptions


def load_published(options: DrafterOptions, kind: type[P]) -> Published[P]:
    """Load the checkpoint that `options.model` names, with the tensors that it shares with its target.

    Raises:
        SettingError: if it is no checkpoint of this kind.
        IncompatibleError: naming what is not understood, or does not fit the target.
    """
    run_as = _torch_options(options, f"a draft of {kind.algorithm}")
    trained = load_trained(options, kind)
    draft, config = trained.draft, trained.config
    weights = open_weights(trained.target, config)
    description = replace(
        trained.description,
        feature_layers=tuple(sorted(draft.layers)),
        feature_size=config.hidden_size,
        max_context_len=min(config.max_positions, draft.draft_layers.config.max_positions),
    )
    return Published(
        draft,
        Borrowed.of(config, weights, draft.tensors, draft.token_ids),
        description,
        run_as,
    )


def _torch_options(options: DrafterOptions, what: str) -> RunnerOptions:
    """Return the options for running a draft that runs in torch operations only.

    Raises:
        SettingError: if they ask for something else.
    """
    found = RunnerOptions(
        options.dtype, options.device, options.executor, kv_tokens=options.kv_tokens, weights=options.weights
    )
    check_options(found)
    if found.executor not in ("auto", "torch"):
        raise SettingError("executor", found.executor, f"{what} runs in torch")
    check_numbers(found, f"{what} is held")
    return found
