"""Tensors of a published draft: all that its configuration calls for, and no other."""

from collections.abc import Mapping
from pathlib import Path

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.weights.draft_checkpoint import checked_tokens, own_tensors
from specinfer.model.weights.published.layers import Shapes

_OF_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Copies of the target's own tensors, by which drafts are trained."""


def read_tensors(
    directory: Path, wanted: Shapes, optional: Shapes, draft_vocabulary: int, vocabulary: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a checkpoint's tensors, and the target token of each draft token.

    Raises:
        IncompatibleError: naming the tensor that is missing, of another shape, or not called for.
    """
    tensors, token_ids = own_tensors(directory)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in _OF_TARGET}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise IncompatibleError(f"its weights lack {missing[0]}")
    shapes = wanted | optional
    for name, tensor in tensors.items():
        if name not in shapes:
            raise IncompatibleError(f"config.json does not call for the tensor {name}")
        if tuple(tensor.shape) != shapes[name]:
            found = f"{name} has shape {list(tensor.shape)}"
            raise IncompatibleError(f"{found}: config.json says {list(shapes[name])}")
    return tensors, _token_ids(token_ids, draft_vocabulary, vocabulary)


def _token_ids(found: torch.Tensor | None, draft_vocabulary: int, vocabulary: int) -> torch.Tensor:
    if found is None and draft_vocabulary == vocabulary:
        return torch.arange(vocabulary)
    return checked_tokens(found, draft_vocabulary, vocabulary)


def in_llama_names(tensors: Mapping[str, torch.Tensor], prefix: str = "layers.") -> dict[str, torch.Tensor]:
    """Return tensors with layers and final norm under the names that our decoder's parts have."""
    renamed = {"norm.weight": "model.norm.weight"}
    return {
        renamed.get(name, f"model.layers.{name.removeprefix(prefix)}" if name.startswith(prefix) else name): t
        for name, t in tensors.items()
    }
