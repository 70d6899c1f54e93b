"""Read and write checkpoints of EAGLE-3, in the layout of `speculators`.

    fc.weight                               [hidden, layers * target hidden]
    layers.0.*                              a decoder layer; query, key and value read [2 * hidden]:
                                            the normed embedding, then the normed hidden state
    layers.0.hidden_norm.weight             norm of the hidden state
    norm.weight, lm_head.weight             [draft vocabulary, hidden]
    d2t, t2d                                target id = draft id + d2t[draft id]; t2d: mask of drafted target ids
    embed_tokens.weight                     if absent, the target's are used

`config.json` has `speculators_model_type: eagle3`, `eagle_aux_hidden_state_layer_ids` (hidden states are read after
this number of target layers) and `norm_before_residual`. Our own files have layers of the target's shape. In files of
other libraries `transformer_layer_config` has the shape, and unknown fields are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from specinfer.drafters.published.config import (
    EAGLE_LAYERS,
    Shapes,
    layer_shapes,
    must_be,
    read_published,
    refused,
    usual_layers,
)
from specinfer.drafters.published.rows import read_tensors
from specinfer.errors import IncompatibleError, naming
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import (
    FINGERPRINT,
    checked_config,
    own_tensors,
    save_checkpoint,
    verifier_fields,
)

ALGORITHM = "eagle3"
_RENAMED = {"hidden_norm.weight": "layers.0.hidden_norm.weight", "model.norm.weight": "norm.weight"}
_EMBEDDING = "embed_tokens.weight"
_UNKNOWN_PARTS = {"norm_before_fc": False, "fc_norm": False, "norm_output": False}
"""Fields of parts that are not supported, with the only accepted values."""
_FIELDS = {
    "draft_vocab_size": None,
    "norm_before_residual": False,
    "target_hidden_size": None,
    "embed_requires_grad": False,
    EAGLE_LAYERS: None,
    **_UNKNOWN_PARTS,
}


@dataclass(frozen=True, slots=True)
class EagleSource:
    algorithm: ClassVar[str] = ALGORITHM
    tensors: Mapping[str, torch.Tensor]
    """Tensors: `fc`, `hidden_norm`, `model.norm`, `lm_head` and the modules of `model.layers.0`."""
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token, ascending."""
    layers: tuple[int, ...]
    """Number of target layers before each hidden state that the draft reads."""
    norm_before_residual: bool = False
    """True if the residual is the normed hidden state."""
    embedding: torch.Tensor | None = None
    """Embeddings [V, hidden]; None: the target's."""
    shape: ModelConfig | None = None
    """Shape of the layer; None: the target's."""


def save_eagle(
    directory: Path, eagle: EagleSource, target_directory: Path, target_name: str, trained: Mapping[str, Any]
) -> None:
    """Write a checkpoint; `trained`: record of command, data and results."""
    stored = {_stored(name): tensor for name, tensor in eagle.tensors.items()}
    if eagle.embedding is not None:
        stored[_EMBEDDING] = eagle.embedding
    fields = {
        "architectures": ["Eagle3Speculator"],
        "norm_before_residual": eagle.norm_before_residual,
        EAGLE_LAYERS: list(eagle.layers),
        "trained": dict(trained),
    }
    shape = {"num_hidden_layers": 1}
    save_checkpoint(
        directory, ALGORITHM, stored, eagle.token_ids, fields, target_directory, target_name, shape
    )


def load_eagle(directory: Path, target_directory: Path) -> EagleSource:
    """Read a checkpoint."""
    config = checked_config(directory, target_directory, ALGORITHM)
    if FINGERPRINT not in verifier_fields(config):
        with naming(directory):
            return _load_published(directory, target_directory)
    tensors, token_ids = own_tensors(directory)
    layers = config.get(EAGLE_LAYERS) or usual_layers(load_config(target_directory).layers)
    return EagleSource(
        _named(tensors),
        torch.arange(config["draft_vocab_size"]) if token_ids is None else token_ids,
        tuple(layers),
        bool(config.get("norm_before_residual", False)),
        tensors.get(_EMBEDDING),
    )


def _load_published(directory: Path, target_directory: Path) -> EagleSource:
    """Read another library's checkpoint; a window becomes the maximum context."""
    config = read_published(directory, target_directory, ALGORITHM, _FIELDS)
    must_be(config.fields, _UNKNOWN_PARTS)
    read, layers = config.read_layers(EAGLE_LAYERS), config.layers
    if list(read) != sorted(read):
        raise IncompatibleError(f"{EAGLE_LAYERS} = {list(read)!r}: must be in ascending order")
    if layers.config.layers != 1:
        raise refused("num_hidden_layers", layers.config.layers, "must be 1: EAGLE-3 has one layer")
    vocabulary, size, hidden = (
        config.count("draft_vocab_size"),
        config.target.vocab_size,
        config.target.hidden_size,
    )
    wanted: Shapes = {"fc.weight": (hidden, len(read) * hidden), "lm_head.weight": (vocabulary, hidden)}
    wanted |= {f"{norm}.weight": (hidden,) for norm in ("layers.0.hidden_norm", "norm")}
    wanted |= layer_shapes("layers.0.", layers, layers.config.qk_norm, width=2)
    tensors, token_ids = read_tensors(directory, wanted, {_EMBEDDING: (size, hidden)}, vocabulary, size)
    (window,) = layers.windows
    max_positions = layers.config.max_positions
    return EagleSource(
        _named(tensors),
        token_ids,
        read,
        config.flag("norm_before_residual"),
        tensors.get(_EMBEDDING),
        replace(layers.config, max_positions=min(max_positions, window) if window else max_positions),
    )


def _stored(name: str) -> str:
    return _RENAMED.get(name, name.removeprefix("model."))


def _named(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a file's tensors under the names of `EagleSource`, without embeddings."""
    back = {stored: usual for usual, stored in _RENAMED.items()}
    return {
        back.get(name, f"model.{name}" if name.startswith("layers.") else name): tensor
        for name, tensor in tensors.items()
        if name != _EMBEDDING
    }
