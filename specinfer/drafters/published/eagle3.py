"""Read and write checkpoints of EAGLE-3, in the layout of `speculators`.

    fc.weight                               [hidden, layers * target hidden]
    layers.0.*                              a decoder layer; query, key and value read [2 * hidden]:
                                            the normed embedding, then the normed hidden state
    layers.0.hidden_norm.weight             norm of the hidden state
    norm.weight, lm_head.weight             [draft vocabulary, hidden]
    d2t, t2d                                target id = draft id + d2t[draft id]; t2d: mask of drafted target ids
    embed_tokens.weight                     if absent, as norm.weight and lm_head.weight may be in our own files, the
                                            target's are used

`config.json` has `speculators_model_type: eagle3`, `eagle_aux_hidden_state_layer_ids` (hidden states are read after
this number of target layers) and `norm_before_residual`. Our own files have layers of the target's shape, and may have
matrices in 4 bits (`four_bits.py`). In files of other libraries `transformer_layer_config` has the shape, and unknown
fields are refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specinfer.drafters.published.config import (
    EAGLE_LAYERS,
    DraftLayers,
    Shapes,
    layer_shapes,
    must_be,
    read_published,
    refused,
    usual_layers,
)
from specinfer.drafters.published.four_bits import FOUR_BITS, in_four_bits
from specinfer.drafters.published.tensors import (
    HEAD,
    OWN_EMBEDDING,
    STORED,
    PublishedSource,
    in_llama_names,
    read_draft,
)
from specinfer.errors import IncompatibleError, naming
from specinfer.model.drafting.stack import DraftWeights
from specinfer.model.weights.config import with_shape
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import (
    FINGERPRINT,
    Overlay,
    check_shapes,
    checked_config,
    checked_tokens,
    own_tensors,
    save_checkpoint,
    verifier_fields,
)
from specinfer.model.weights.families import EMBEDDING, open_weights
from specinfer.model.weights.trimmed import trimmed

ALGORITHM = "eagle3"
OF_TARGET = (EMBEDDING, "model.norm.weight", HEAD)
"""Tensors that are the target's if the file has none."""
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


class EagleSource(PublishedSource):
    algorithm = ALGORITHM


def save_eagle(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    layers: tuple[int, ...],
    target_directory: Path,
    target_name: str,
    trained: Mapping[str, Any],
    four_bits: bool = False,
) -> None:
    """Write a checkpoint; `trained`: record of command, data and results.

    `four_bits`: store matrices in 4 bits. Final norm and head must be the target's; the head is only stored if the
    target has a factor on logits.
    """
    stored = {STORED.get(name, name.removeprefix("model.")): tensor for name, tensor in tensors.items()}
    fields = {
        "architectures": ["Eagle3Speculator"],
        "norm_before_residual": False,
        EAGLE_LAYERS: list(layers),
        "trained": dict(trained),
    }
    shape = {"num_hidden_layers": 1, "intermediate_size": stored["layers.0.mlp.down_proj.weight"].shape[1]}
    if four_bits:
        of_target = {"norm.weight"} | ({HEAD} if load_config(target_directory).logit_scale == 1 else set())
        stored = in_four_bits({name: stored[name] for name in stored.keys() - of_target})
        fields["quantization_config"] = FOUR_BITS
    save_checkpoint(directory, ALGORITHM, stored, token_ids, fields, target_directory, target_name, shape)


def load_eagle(directory: Path, target_directory: Path) -> EagleSource:
    """Read a checkpoint."""
    config = checked_config(directory, target_directory, ALGORITHM)
    if FINGERPRINT not in verifier_fields(config):
        with naming(directory):
            return _load_published(directory, target_directory)
    tensors, token_ids = own_tensors(directory)
    target, own = load_config(target_directory), in_llama_names(tensors)
    token_ids = torch.arange(config["draft_vocab_size"]) if token_ids is None else token_ids
    with naming(directory):
        token_ids = checked_tokens(token_ids, config["draft_vocab_size"], target.vocab_size)
    shape = with_shape(target.draft_layer(), config["transformer_layer_config"])
    layers = tuple(config.get(EAGLE_LAYERS) or usual_layers(target.layers))
    with naming(directory):
        check_shapes(tensors, _shapes(DraftLayers(shape, (None,), True), len(layers), len(token_ids)))
    of_target = trimmed(open_weights(target_directory, target, blocks=True), token_ids.tolist())
    weights = DraftWeights(
        replace(shape, vocab_size=len(token_ids)),
        Overlay(own, of_target, [name for name in OF_TARGET if name not in own]),
        four_bits="quantization_config" in config,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        layers=layers,
    )
    return EagleSource(weights, token_ids)


def _shapes(layers: DraftLayers, read: int, drafted: int, normed_heads: bool = False) -> Shapes:
    """Return the tensors' names and shapes; `read`: number of target layers read."""
    hidden = layers.config.hidden_size
    shapes: Shapes = {"fc.weight": (hidden, read * hidden), HEAD: (drafted, hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("layers.0.hidden_norm", "norm")}
    return shapes | layer_shapes("layers.0.", layers, normed_heads, width=2)


def _load_published(directory: Path, target_directory: Path) -> EagleSource:
    """Read another library's checkpoint; a window becomes the maximum context."""
    config = read_published(directory, target_directory, ALGORITHM, _FIELDS)
    must_be(config.fields, _UNKNOWN_PARTS)
    read, layers = config.read_layers(EAGLE_LAYERS), config.layers
    if list(read) != sorted(read):
        raise IncompatibleError(f"{EAGLE_LAYERS} = {list(read)!r}: must be in ascending order")
    if layers.config.layers != 1:
        raise refused("num_hidden_layers", layers.config.layers, "must be 1: EAGLE-3 has one layer")
    vocabulary, hidden = config.draft_vocabulary, config.target.hidden_size
    wanted = _shapes(layers, len(read), vocabulary, layers.config.qk_norm)
    (window,) = layers.windows
    shape = replace(
        layers.config,
        max_positions=min(layers.config.max_positions, window or layers.config.max_positions),
        vocab_size=vocabulary,
        tied_embeddings=False,
    )
    return read_draft(
        EagleSource,
        replace(config, layers=replace(layers, config=shape, windows=(None,))),
        wanted,
        {OWN_EMBEDDING: (config.target.vocab_size, hidden)},
        layers=read,
        norm_before_residual=config.flag("norm_before_residual"),
    )
