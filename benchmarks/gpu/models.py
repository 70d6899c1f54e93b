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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.engine import llama_config
from benchmarks.gpu.run import GpuContext, ServedShape
from specinfer.model.options import torch_dtype

_LATER = 0.05
"""Factor of the later layers' outputs; smaller factors make the draft right more often."""
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Pair(NamedTuple):
    """Directories of a target and of its draft."""

    target: Path
    draft: Path


@contextmanager
def written_pair(served: ServedShape, context: GpuContext) -> Iterator[Pair]:
    """Write both models; the context deletes them."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(context.device):
        model = AutoModelForCausalLM.from_config(llama_config(served.shape), dtype=torch_dtype(served.dtype))
    layers = model.model.layers
    for layer in layers[served.draft_layers :]:
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            last.weight.data *= _LATER
    with tempfile.TemporaryDirectory(dir=context.folder) as folder:
        pair = Pair(Path(folder) / "target", Path(folder) / "draft")
        for directory, count in zip(pair, (len(layers), served.draft_layers), strict=True):
            del layers[count:]
            model.config.num_hidden_layers = count
            model.save_pretrained(directory)
            (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
            tokenizer(served.shape.vocabulary).save(str(directory / "tokenizer.json"))
        del model, layers
        context.free()
        yield pair


def tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer of bytes, and of a different number for each further token."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*signs, *(f"\u0120{token}" for token in range(len(signs), size))]
    fast = Tokenizer(models.BPE({text: token for token, text in enumerate(texts)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return fast
