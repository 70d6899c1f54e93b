"""MTP drafts: one decoder layer that reads the target's last hidden state with the token one ahead of it.

    mtp_layers.0.input_proj.weight              [hidden, 2 * hidden], of the embedding, then of the hidden state
    mtp_layers.0.token_layernorm.weight         norm of the embedding
    mtp_layers.0.hidden_layernorm.weight        norm of the hidden state
    mtp_layers.0.*, ....final_layernorm.weight  a decoder layer; the norm of what it says

Embeddings and output head are the target's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specinfer.model.weights.published.config import must_be, naming, read_published
from specinfer.model.weights.published.layers import DraftLayers, Shapes, layer_shapes, refused
from specinfer.model.weights.published.tensors import in_llama_names, read_tensors

_PREFIX = "mtp_layers."
_KIND = "qwen3"
"""The family of MTP layers that our decoder knows; the library has hybrid ones, too."""


@dataclass(frozen=True, slots=True)
class MtpSource:
    """An MTP draft."""

    algorithm: ClassVar[str] = "mtp"
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[V] all tokens of the target."""
    draft_layers: DraftLayers
    layers: tuple[int, ...]
    """The target's last layer."""


def load_mtp(directory: Path, target_directory: Path) -> MtpSource:
    """Read a checkpoint.

    Raises:
        IncompatibleError: naming what is not understood, or does not fit the target.
    """
    with naming(directory):
        config = read_published(
            directory, target_directory, MtpSource.algorithm, {"num_nextn_predict_layers": 1}
        )
        must_be(config.fields, {"num_nextn_predict_layers": 1})
        if config.layers.config.family != _KIND:
            raise refused("model_type", config.layers.config.family, f"MTP layers are of {_KIND}")
        if config.layers.windows[0] is not None:
            raise refused("sliding_window", config.layers.windows[0], "an MTP layer sees all positions")
        hidden, size = config.target.hidden_size, config.target.vocab_size
        wanted: Shapes = {f"{_PREFIX}0.input_proj.weight": (hidden, 2 * hidden)}
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            wanted[f"{_PREFIX}0.{norm}.weight"] = (hidden,)
        wanted |= layer_shapes(f"{_PREFIX}0.", config.layers, normed_heads=True)
        tensors, token_ids = read_tensors(directory, wanted, {}, size, size)
        layers = (config.target.layers,)
        return MtpSource(in_llama_names(tensors, _PREFIX), token_ids, config.layers, layers)
