"""Random DFlash and JetSpec checkpoints in `transformers`' layout."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.support.models.published import BLOCK, FULL, LAYERS, MASK, VOCABULARY, random_tensors

IDS = [1, 0]
"""Layers of the target whose output states are read."""
_SHARPER = 10.0
"""Factor of the final norm: with the target's small head, all tokens would be almost equally likely."""
_NOT_THERE = ("lm_head.weight", "d2t", "t2d")


def flat_config(causal: bool | None, inner: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a `config.json`; `inner` and `fields` replace fields of `dflash_config` and of the file."""
    options = {} if causal is None else {"causal_head": causal}
    return {
        **LAYERS,
        **FULL,
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "block_size": BLOCK,
        "num_target_layers": 3,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": IDS, **options, **(inner or {})},
        **fields,
    }


def save_flat(directory: Path, causal: bool | None, **fields: Any) -> Path:
    """Save a checkpoint with random tensors, without head and embeddings."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(flat_config(causal, **fields)))
    tensors = random_tensors("dflash", {"aux_hidden_state_layer_ids": IDS}, list(range(VOCABULARY)))
    kept = {name: tensor for name, tensor in tensors.items() if name not in _NOT_THERE}
    kept["norm.weight"] *= _SHARPER
    save_file(kept, directory / "model.safetensors")
    return directory
