"""Read MTP drafts in models' own checkpoints: Qwen 3.5, 3 Next.

    safetensors   mtp.fc, mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden, mtp.norm, mtp.layers.0.*
    GGUF          blk.N.nextn.eh_proj, .enorm, .hnorm, .shared_head_norm, blk.N.*    N: number of the model's layers

Tensors get the names of `DraftWeights`. The layer has attention with output gates, and a dense or
an expert MLP. It reads the target's hidden state after the final norm.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from specinfer.drafters.heads_layers import output_head
from specinfer.drafters.published.mtp import MtpSource
from specinfer.drafters.vocabulary import drafted_tokens
from specinfer.errors import IncompatibleError
from specinfer.model.drafting.stack import DraftWeights
from specinfer.model.families.experts import ROUTER
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import Overlay
from specinfer.model.weights.families import EMBEDDING, RenamedWeights, open_weights, sources_of
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import kept_gguf

_FIRST = "model.layers.0."
_NAMES = {
    "mtp.fc.": "input_proj.",
    "mtp.pre_fc_norm_embedding.": "token_norm.",
    "mtp.pre_fc_norm_hidden.": "hidden_norm.",
    "mtp.norm.": "model.norm.",
    "mtp.layers.0.": _FIRST,
    f"{_FIRST}input_proj.": "input_proj.",
    f"{_FIRST}token_layernorm.": "token_norm.",
    f"{_FIRST}hidden_layernorm.": "hidden_norm.",
    f"{_FIRST}final_layernorm.": "model.norm.",
}
"""Prefixes in safetensors, then in GGUF files -> ours."""
_QUERY, _GATE = (f"{_FIRST}self_attn.{name}_proj.weight" for name in ("q", "gate"))


def load_own_mtp(directory: Path, vocabulary: int) -> MtpSource:
    """Read the draft in a model's directory.

    Args:
        vocabulary: number of tokens to draft, the most frequent ones; 0: all.
    """
    config = load_config(directory)
    stored, names = _stored(directory, config)
    if unknown := sorted(name for name in names.values() if name.startswith("mtp.")):
        raise IncompatibleError(f"{directory}: {unknown[0]}: unknown tensor of an MTP draft")
    sources = sources_of(config, names)
    if config.output_gate:
        rows = sources.pop(_QUERY)
        for which, name in enumerate((_QUERY, _GATE)):
            sources[name] = rows._replace(pick=partial(_of_heads, config.heads, which))
    experts = config.experts if f"{_FIRST}{ROUTER}" in sources else None
    layer = replace(
        config,
        layers=1,
        recurrent_layers=(),
        recurrent_shape=None,
        output_gate=False,
        experts=replace(experts, dense_layers=frozenset()) if experts else None,
    )
    tokens = drafted_tokens(directory, vocabulary) or range(config.vocab_size)
    target = open_weights(directory, config)
    weights = DraftWeights(
        layer,
        Overlay(RenamedWeights(stored, sources, experts.count if experts else 0), target, [EMBEDDING]),
        head=output_head(config, target, torch.tensor(tokens)),
        layers=(config.layers,),
        target_norm=target["model.norm.weight"],
    )
    return MtpSource(weights, torch.tensor(tokens))


def _stored(directory: Path, config: ModelConfig) -> tuple[Mapping[str, torch.Tensor], dict[str, str]]:
    """Return the model's weights, and our names of the draft's tensors."""
    gguf = kept_gguf(directory)
    if gguf is not None:
        weights: Mapping[str, torch.Tensor] = GgufWeights(gguf, blocks=False, mtp=True)
        return weights, {name: _renamed(name.replace(f".{config.layers}.", ".0.", 1)) for name in weights}
    weights = open_checkpoint(directory)
    return weights, {name: _renamed(name) for name in weights if name.startswith("mtp.")}


def _renamed(name: str) -> str:
    return next((name.replace(old, new, 1) for old, new in _NAMES.items() if name.startswith(old)), name)


def _of_heads(heads: int, which: int, rows: torch.Tensor) -> torch.Tensor:
    """Return all heads' query rows (`which` = 0) or gate rows (1)."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1)[:, which].flatten(0, 1)
