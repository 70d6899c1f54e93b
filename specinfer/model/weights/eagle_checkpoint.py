"""Checkpoints of EAGLE-3 speculators, in the layout of the `speculators` library.

    fc.weight                               [hidden, layers * target hidden]
    layers.0.hidden_norm.weight             beside the modules of a decoder layer, whose query, key and value
                                            read [2 * hidden]: norm of the embedding, then of the hidden state
    norm.weight, lm_head.weight             [draft vocabulary, hidden]
    d2t, t2d                                target id = draft id + d2t[draft id]; which target ids are drafted
    embed_tokens.weight                     the target's own are taken where it is absent

`config.json` says `speculators_model_type: eagle3`, the target's layers whose hidden states are read
(`eagle_aux_hidden_state_layer_ids`: after so many layers), and `norm_before_residual`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from specinfer.model.weights.config import load_config
from specinfer.model.weights.draft_checkpoint import checked_config, own_tensors, save_checkpoint

ALGORITHM = "eagle3"
_RENAMED = {"hidden_norm.weight": "layers.0.hidden_norm.weight", "model.norm.weight": "norm.weight"}
_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class EagleSource:
    """An EAGLE-3 speculator."""

    algorithm: ClassVar[str] = ALGORITHM
    tensors: Mapping[str, torch.Tensor]
    """Tensors: `fc`, `hidden_norm`, `model.norm`, `lm_head` and the modules of `model.layers.0`."""
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token, ascending."""
    layers: tuple[int, ...]
    """Numbers of the target's layers after which the hidden states are taken."""
    norm_before_residual: bool = False
    """True if the residual is the normed hidden state."""
    embedding: torch.Tensor | None = None
    """Its own embeddings [V, hidden]; None: the target's."""


def save_eagle(
    directory: Path, eagle: EagleSource, target_directory: Path, target_name: str, trained: Mapping[str, Any]
) -> None:
    """Write a checkpoint. `trained` records data, command, seed, time and figures."""
    stored = {_stored(name): tensor for name, tensor in eagle.tensors.items()}
    if eagle.embedding is not None:
        stored[_EMBEDDING] = eagle.embedding
    fields = {
        "architectures": ["Eagle3Speculator"],
        "norm_before_residual": eagle.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(eagle.layers),
        "trained": dict(trained),
    }
    shape = {"num_hidden_layers": 1}
    save_checkpoint(
        directory, ALGORITHM, stored, eagle.token_ids, fields, target_directory, target_name, shape
    )


def load_eagle(directory: Path, target_directory: Path) -> EagleSource:
    """Read a checkpoint.

    Raises:
        IncompatibleError: if it was trained for another target, or is of another kind.
    """
    config = checked_config(directory, target_directory, ALGORITHM)
    target = load_config(target_directory)
    own, token_ids = own_tensors(directory)
    layers = config.get("eagle_aux_hidden_state_layer_ids") or _usual_layers(target.layers)
    return EagleSource(
        {_named(name): tensor for name, tensor in own.items() if name != _EMBEDDING},
        torch.arange(config["draft_vocab_size"]) if token_ids is None else token_ids,
        tuple(layers),
        bool(config.get("norm_before_residual", False)),
        own.get(_EMBEDDING),
    )


def _usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the tensors of EAGLE-3."""
    return 2, layers // 2, layers - 3


def _stored(name: str) -> str:
    return _RENAMED.get(name, name.removeprefix("model."))


def _named(name: str) -> str:
    back = {stored: own for own, stored in _RENAMED.items()}
    return back.get(name, f"model.{name}" if name.startswith("layers.") else name)
