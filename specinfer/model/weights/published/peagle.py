"""P-EAGLE drafts: layers of EAGLE-3's kind that guess all depths in one pass.

fc.weight                        [hidden, layers read * hidden]; before it input_norm, or fc_norm.n by layer
layers.0.*                       as of EAGLE-3: its attention reads [2 * hidden], with hidden_norm
layers.i.*, norm.weight          further decoder layers; the final norm
lm_head.weight, d2t, t2d         as of EAGLE-3; the target's own head where it is absent
embed_tokens.weight              [V, hidden], trained with the draft; the target's where it is absent
mask_hidden                      [1, 1, layers read * hidden]: hidden states of a position beyond the first
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specinfer.model.weights.published.config import (
    EAGLE_LAYERS,
    PublishedConfig,
    must_be,
    naming,
    read_published,
)
from specinfer.model.weights.published.layers import DraftLayers, Shapes, layer_shapes
from specinfer.model.weights.published.tensors import in_llama_names, read_tensors

_FIELDS = {
    "draft_vocab_size": None,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "target_hidden_size": None,
    "embed_requires_grad": True,
    EAGLE_LAYERS: None,
    "mask_token_id": None,
}


@dataclass(frozen=True, slots=True)
class PEagleSource:
    """A P-EAGLE draft."""

    algorithm: ClassVar[str] = "peagle"
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token."""
    draft_layers: DraftLayers
    layers: tuple[int, ...]
    """Numbers of the target's layers after which hidden states are read, in the order of `fc`."""
    depths: int
    """Tokens that are guessed at once."""
    mask: int
    """Token of the positions beyond the first."""
    norm_before_residual: bool


def load_peagle(directory: Path, target_directory: Path) -> PEagleSource:
    """Read a checkpoint.

    Raises:
        IncompatibleError: naming what is not understood, or does not fit the target.
    """
    with naming(directory):
        config = read_published(directory, target_directory, PEagleSource.algorithm, _FIELDS)
        must_be(config.fields, {"norm_output": False})
        vocabulary, size = config.count("draft_vocab_size"), config.target.vocab_size
        hidden = config.target.hidden_size
        own: Shapes = {"embed_tokens.weight": (size, hidden), "lm_head.weight": (vocabulary, hidden)}
        tensors, token_ids = read_tensors(directory, _shapes(config), own, vocabulary, size)
        return PEagleSource(
            in_llama_names(tensors),
            token_ids,
            config.layers,
            config.read_layers(EAGLE_LAYERS),
            config.tokens,
            config.token("mask_token_id"),
            config.flag("norm_before_residual"),
        )


def _shapes(config: PublishedConfig) -> Shapes:
    hidden, read = config.target.hidden_size, len(config.read_layers(EAGLE_LAYERS))
    found: Shapes = {"fc.weight": (hidden, read * hidden), "mask_hidden": (1, 1, read * hidden)}
    found |= {f"{norm}.weight": (hidden,) for norm in ("layers.0.hidden_norm", "norm")}
    if config.flag("norm_before_fc"):
        must_be(config.fields, {"fc_norm": False})
        found["input_norm.weight"] = (read * hidden,)
    if config.flag("fc_norm"):
        found |= {f"fc_norm.{place}.weight": (hidden,) for place in range(read)}
    normed = config.layers.config.qk_norm
    for index in range(config.layers.config.layers):
        found |= layer_shapes(f"layers.{index}.", config.layers, normed, width=1 if index else 2)
    return found
