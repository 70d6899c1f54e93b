"""Read MTP drafts: a decoder layer over the target's last hidden state.

As in EAGLE-3, rows of nodes follow the context's rows in one cache. (In training, each drafted depth has its own rows
for the whole context.) Tensors:

    mtp_layers.0.input_proj.weight              [hidden, 2 * hidden], of the embedding, then of the hidden state
    mtp_layers.0.token_layernorm.weight         norm of the embedding
    mtp_layers.0.hidden_layernorm.weight        norm of the hidden state
    mtp_layers.0.*, ....final_layernorm.weight  a decoder layer; its final norm

Embeddings and output head are the target's. A draft in the target's own checkpoint (`own_mtp.py`) may also have

    mtp_layers.0.self_attn.gate_proj.weight     [heads * D, hidden], gates of the attention's output
"""

from dataclasses import replace
from pathlib import Path

from specinfer.drafters.published.config import Shapes, layer_shapes, must_be, read_published, refused
from specinfer.drafters.published.tensors import PublishedSource, read_draft
from specinfer.errors import naming

_KIND = "qwen3"
"""The only supported family; the library also has hybrid MTP layers."""


class MtpSource(PublishedSource):
    """An MTP draft, with the target's vocabulary and last layer."""

    algorithm = "mtp"


def load_mtp(directory: Path, target_directory: Path) -> MtpSource:
    """Read a checkpoint."""
    with naming(directory):
        fields = {"num_nextn_predict_layers": 1}
        config = read_published(directory, target_directory, MtpSource.algorithm, fields)
        must_be(config.fields, fields)
        shape, (window, *_) = config.layers.config, config.layers.windows
        if shape.family != _KIND:
            raise refused("model_type", shape.family, f"must be {_KIND} for an MTP layer")
        if window is not None:
            raise refused("sliding_window", window, "must be absent: an MTP layer sees all positions")
        hidden, prefix = config.target.hidden_size, "mtp_layers.0."
        wanted: Shapes = {f"{prefix}input_proj.weight": (hidden, 2 * hidden)}
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            wanted[f"{prefix}{norm}.weight"] = (hidden,)
        wanted |= layer_shapes(prefix, config.layers, normed_heads=True)
        layers = replace(config.layers, config=replace(shape, layers=1), windows=(None,))
        return read_draft(
            MtpSource,
            replace(config, layers=layers),
            wanted,
            {},
            layers=(config.target.layers,),
        )
