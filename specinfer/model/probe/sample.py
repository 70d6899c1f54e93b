"""The first layers and rows of a GGUF file's model, in float32: enough to compare, little to hold."""

import copy
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specinfer.model.weights.files import GgufWeights, TensorSlice

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ROWS = 2048
"""Number of first tokens whose embeddings and logits are compared."""
_FEWEST_LAYERS = 2


class Sample(NamedTuple):
    """A model cut down."""

    hf: Any
    """Configuration of `transformers`."""
    tensors: dict[str, torch.Tensor]


def read_sample(path: Path, hf: Any) -> Sample:
    """Read the first layers of a GGUF file, of every kind at least one, and the first rows of its vocabulary.

    Args:
        hf: configuration of the whole model.
    """
    small, count = copy.deepcopy(hf), layers_with_every_kind(hf)
    small.num_hidden_layers, small.vocab_size = count, min(_ROWS, hf.vocab_size)
    small.pad_token_id = None  # it may be a token beyond those
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:count]
    weights, rows = GgufWeights(path, blocks=False), TensorSlice(0, 0, small.vocab_size)
    names = [name for name in weights if (found := _LAYER.search(name)) is None or int(found[1]) < count]
    tensors = {
        name: weights.part(name, rows) if weights.shape(name)[0] == hf.vocab_size else weights[name]
        for name in names
    }
    return Sample(small, tensors)


def layers_with_every_kind(hf: Any) -> int:
    """Return the number of first layers among which every kind of layer is, at least two if there are two."""
    kinds = list(getattr(hf, "layer_types", None) or [])[: hf.num_hidden_layers]
    last = max((kinds.index(kind) for kind in kinds), default=0)
    return min(max(_FEWEST_LAYERS, last + 1), int(hf.num_hidden_layers))
