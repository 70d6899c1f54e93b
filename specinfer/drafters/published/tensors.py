"""Read the tensors of a published draft.

The target's embeddings and output head replace missing ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch

from specinfer.drafters.heads_layers import output_head
from specinfer.drafters.published.config import PublishedConfig, Shapes
from specinfer.errors import IncompatibleError
from specinfer.model.drafting.stack import DraftWeights
from specinfer.model.weights.draft_checkpoint import Overlay, check_shapes, checked_tokens, own_tensors
from specinfer.model.weights.families import EMBEDDING, open_weights

HEAD, OWN_EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_OF_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Copies of the target's tensors, used only in training."""


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """A published draft."""

    algorithm: ClassVar[str]
    weights: DraftWeights
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token."""


P = TypeVar("P", bound=PublishedSource)


def read_draft(
    kind: type[P],
    config: PublishedConfig,
    wanted: Shapes,
    optional: Shapes,
    unused: bool = False,
    **reading: Any,
) -> P:
    """Read a checkpoint's tensors.

    Args:
        wanted: names and shapes of required tensors; `optional` may be absent.
        unused: whether optional tensors are only allowed, not used.
        reading: further fields of `DraftWeights`.
    """
    tensors, token_ids = _read_tensors(config, wanted, optional)
    target = open_weights(config.target_directory, config.target)
    tensors = {name: tensor for name, tensor in tensors.items() if name in wanted or not unused}
    if HEAD not in tensors:
        tensors[HEAD] = output_head(config.target, target, token_ids)
    named = in_llama_names(tensors)
    weights = DraftWeights(
        config.layers.config,
        Overlay(named, target, [EMBEDDING] if EMBEDDING not in named else []),
        windows=config.layers.windows,
    )
    return kind(replace(weights, **reading), token_ids)


def _read_tensors(
    config: PublishedConfig, wanted: Shapes, optional: Shapes
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a checkpoint's tensors, and the target token of each draft token."""
    tensors, token_ids = own_tensors(config.directory)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in _OF_TARGET}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise IncompatibleError(f"the weights lack {missing[0]}, which config.json requires")
    shapes = wanted | optional
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise IncompatibleError(
            f"the weights have the tensor {unknown[0]}, which config.json does not describe"
        )
    check_shapes(tensors, shapes)
    drafted, size = config.draft_vocabulary, config.target.vocab_size
    if token_ids is None and drafted == size:
        return tensors, torch.arange(size)
    return tensors, checked_tokens(token_ids, drafted, size)


_LAYERS = re.compile(r"^(mtp_)?layers\.")
_NAMES = (
    *(("norm", "model.norm"), ("layers.0.hidden_norm", "hidden_norm")),
    *((f"mtp_layers.0.{n}_layernorm", f"{n}_norm") for n in ("token", "hidden")),
    *(("mtp_layers.0.final_layernorm", "model.norm"), ("mtp_layers.0.input_proj", "input_proj")),
)
STORED = {f"{ours}.weight": f"{stored}.weight" for stored, ours in _NAMES[:2]}
"""Our name -> name in EAGLE's files, if it is more than a prefix that differs."""
_OURS = {f"{stored}.weight": f"{ours}.weight" for stored, ours in _NAMES} | {OWN_EMBEDDING: EMBEDDING}


def in_llama_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors under the names of `DraftWeights`."""
    return {_OURS.get(name) or _LAYERS.sub("model.layers.", name): tensor for name, tensor in tensors.items()}
