"""The first layers and rows of a GGUF file's model, in float32: enough to compare, little to hold."""

import copy
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specinfer.model.weights.config import ModelConfig, from_transformers
from specinfer.model.weights.files import GgufWeights, TensorSlice

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ROWS = 2048
"""Number of first tokens whose embeddings and logits are compared."""
_FEWEST_LAYERS = 2
_WINDOW = 16
"""Greatest sliding window in a probe: its prompt is longer."""


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
    small, count = copy.deepcopy(hf), fewest_layers(from_transformers(hf))
    shorten_window(small)
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


def fewest_layers(config: ModelConfig) -> int:
    """Return the number of first layers to compare: of every kind at least one, two if there are two."""
    return min(max(_FEWEST_LAYERS, config.varied_layers), config.layers)


def shorten_window(hf: Any) -> None:
    """Make a sliding window shorter than the prompt of a probe."""
    if getattr(hf, "sliding_window", None):
        hf.sliding_window = min(hf.sliding_window, _WINDOW)
