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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from specinfer.model.weights.config import load_config
from specinfer.model.weights.draft_checkpoint import KIND, checked_config, speculators_config
from specinfer.model.weights.files import SafetensorsWeights

ALGORITHM = "eagle3"
_RENAMED = {"hidden_norm.weight": "layers.0.hidden_norm.weight", "model.norm.weight": "norm.weight"}
_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class EagleSource:
    """An EAGLE-3 speculator."""

    algorithm: ClassVar[str] = ALGORITHM
    tensors: Mapping[str, torch.Tensor]
    """`fc`, `hidden_norm`, `model.norm`, `lm_head` and the modules of `model.layers.0`."""
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token, ascending."""
    layers: tuple[int, ...]
    """After how many layers of the target the hidden states are taken."""
    norm_before_residual: bool = False
    """Whether the residual is the normed hidden state."""
    embedding: torch.Tensor | None = None
    """[V, hidden] its own; None: the target's."""


def save_eagle(
    directory: Path, eagle: EagleSource, target_directory: Path, target_name: str, trained: Mapping[str, Any]
) -> None:
    """Writes a checkpoint in bfloat16; `config.json` comes last, so a checkpoint is whole or not there.

    `trained` records data, command, seed, time and figures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").unlink(missing_ok=True)
    stored = {_stored(name): tensor.to(torch.bfloat16).contiguous() for name, tensor in eagle.tensors.items()}
    if eagle.embedding is not None:
        stored[_EMBEDDING] = eagle.embedding.to(torch.bfloat16).contiguous()
    vocab_size = load_config(target_directory).vocab_size
    stored["d2t"] = eagle.token_ids - torch.arange(len(eagle.token_ids))
    stored["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, eagle.token_ids, True)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Eagle3Speculator"],
        KIND: ALGORITHM,
        "draft_vocab_size": len(eagle.token_ids),
        "norm_before_residual": eagle.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(eagle.layers),
        **speculators_config(ALGORITHM, target_directory, target_name, layers=1),
        "trained": dict(trained),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_eagle(directory: Path, target_directory: Path) -> EagleSource:
    """Reads a checkpoint.

    Raises:
        IncompatibleError: if it was trained for another target, or is of another kind.
    """
    config = checked_config(directory, target_directory, ALGORITHM)
    target = load_config(target_directory)
    own = SafetensorsWeights(directory)
    tensors = {_named(name): own[name] for name in own if name not in ("d2t", "t2d", _EMBEDDING)}
    ids = torch.arange(config["draft_vocab_size"])
    layers = config.get("eagle_aux_hidden_state_layer_ids") or _usual_layers(target.layers)
    return EagleSource(
        tensors,
        ids + own["d2t"] if "d2t" in own else ids,
        tuple(layers),
        bool(config.get("norm_before_residual", False)),
        own.get(_EMBEDDING),
    )


def _usual_layers(layers: int) -> tuple[int, int, int]:
    """Those of EAGLE-3."""
    return 2, layers // 2, layers - 3


def _stored(name: str) -> str:
    return _RENAMED.get(name, name.removeprefix("model."))


def _named(name: str) -> str:
    back = {stored: own for own, stored in _RENAMED.items()}
    return back.get(name, f"model.{name}" if name.startswith("layers.") else name)
