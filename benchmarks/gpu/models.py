"""Write a random target and its draft to disk, in the form of pulled models.

The draft is the target's first layers, and the target's later layers change the hidden states little. So the draft is
often right, as a trained one is, and trees are accepted without synthetic rules. Texts are meaningless.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.engine import RandomWeights, llama_config
from benchmarks.gpu.run import GpuContext, ServedShape
from specinfer.model.options import torch_dtype

_LATER = 0.05
"""Factor of the later layers' outputs; smaller factors make the draft right more often."""
_INDEX = "model.safetensors.index.json"
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Pair(NamedTuple):
    """Directories of a target and of its draft."""

    target: Path
    draft: Path


@contextmanager
def written_pair(served: ServedShape, context: GpuContext) -> Iterator[Pair]:
    """Write both models; the context deletes them."""
    config = llama_config(served.shape)
    weights = RandomWeights(config, torch_dtype(served.dtype), context.device)
    with tempfile.TemporaryDirectory(dir=context.folder) as folder:
        pair = Pair(Path(folder) / "target", Path(folder) / "draft")
        for directory, layers in zip(pair, (served.shape.layers, served.draft_layers), strict=True):
            directory.mkdir()
            config.num_hidden_layers, config.dtype = layers, served.dtype
            config.save_pretrained(directory)
            (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
            tokenizer(served.shape.vocabulary).save(str(directory / "tokenizer.json"))
        files = dict[str, str]()
        for number, layer in enumerate([None, *range(served.shape.layers)]):
            part, name = _part(weights, layer, served.draft_layers), f"model-{number:05}.safetensors"
            save_file(part, pair.target / name)
            files |= dict.fromkeys(part, name)
            if number <= served.draft_layers:
                (pair.draft / name).hardlink_to(pair.target / name)
        for directory in pair:
            here = {tensor: name for tensor, name in files.items() if (directory / name).exists()}
            (directory / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": here}))
        context.free()
        yield pair


def _part(weights: RandomWeights, layer: int | None, unchanged: int) -> dict[str, torch.Tensor]:
    """Return a layer's tensors, or those outside all layers (None)."""
    prefix = "" if layer is None else f"model.layers.{layer}."
    names = [name for name in weights if name.startswith(prefix) and (prefix or "layers" not in name)]
    part = {name: weights[name].cpu() for name in names}
    for name in names:
        if layer is not None and layer >= unchanged and ("o_proj" in name or "down_proj" in name):
            part[name] *= _LATER
    return part


def tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer of bytes, and of a different number for each further token."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*signs, *(f"\u0120{token}" for token in range(len(signs), size))]
    fast = Tokenizer(models.BPE({text: token for token, text in enumerate(texts)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return fast
