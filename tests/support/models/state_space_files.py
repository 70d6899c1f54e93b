"""GGUF files of Mamba 2, Granite 4 and Falcon H1 in the layout of llama.cpp's converter.

Tensors and keys have the names of the `gguf` package.
"""

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {"granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "mamba2": "mamba2"}
"""Architecture names in GGUF files, by `model_type`."""
_ROUTED = {
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
}
_SPLIT = {
    "block_sparse_moe.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
}
_DENSE = {f"ffn_{part}_shexp": f"ffn_{part}" for part in ("gate", "up", "down")}


def interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a projection with its rows in llama.cpp's order of rotary pairs."""
    size = tensor.shape[0] // heads
    return tensor.view(heads, 2, size // 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _sizes(config: Any) -> dict[str, int]:
    names = ["n_groups", "num_heads", "state_size", "head_dim", "conv_kernel"]
    if config.model_type != "mamba2":
        names = [f"mamba_{name}" for name in ("n_groups", "n_heads", "d_state", "d_head", "d_conv")]
    groups, heads, state, size, kernel = (getattr(config, name) for name in names)
    return {
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": heads * size,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }


def values_of(config: Any) -> dict[str, Any]:
    """Return the metadata keys of a model's file."""
    common = {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size}
    common |= _sizes(config)
    if config.model_type == "mamba2":
        return common | {
            "context_length": 2**20,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        }
    common |= {
        "context_length": config.max_position_embeddings,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if config.model_type == "falcon_h1":
        return common | {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    rotary, heads = config.position_embedding_type == "rope", config.num_key_value_heads
    return common | {
        "attention.head_count_kv": [heads * (kind == "full_attention") for kind in config.layer_types],
        "context_length": config.max_position_embeddings if rotary else 2**20,
        "rope.scaling.finetuned": rotary,
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "embedding_scale": config.embedding_multiplier,
        "attention.scale": config.attention_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in _each(model)}


def _each(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    config = model.config
    number = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[ARCHITECTURES[config.model_type]]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stored = _changed(name, tensor.detach().float(), config)
        layer, part = f"blk.{'.'.join(name.split('.')[2:3])}", name.split(".", 3)[-1]
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if part in _SPLIT:
            for short, half in zip(_SPLIT[part], stored.chunk(2, -2), strict=True):
                yield f"{layer}.{_of_dense(short, config)}", half
        elif part in _ROUTED:
            yield f"{layer}.{_ROUTED[part]}", stored
        else:
            known = name.replace(".dt_bias", ".dt_proj.bias")
            yield _of_dense(names.get_name(known, (".weight", ".bias")), config), stored


def _of_dense(name: str, config: Any) -> str:
    """Return the name of a tensor in a file without experts."""
    if not getattr(config, "num_local_experts", 0):
        for shared, dense in _DENSE.items():
            name = name.replace(shared, dense)
    return name


def _changed(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Return a tensor in the layout of the file."""
    sizes = _sizes(config)
    if name.endswith("A_log"):
        return -tensor.exp()[:, None]
    if name.endswith(".D"):
        return tensor[:, None]
    if name.endswith("conv1d.weight"):
        return tensor.squeeze()
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        return tensor.reshape(sizes["ssm.group_count"], -1)
    if config.model_type == "falcon_h1":
        return _multiplied(name, tensor, config)
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        query = name.endswith("q_proj.weight")
        return interleaved(tensor, config.num_attention_heads if query else config.num_key_value_heads)
    return tensor


def _multiplied(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Return a tensor of Falcon H1, multiplied by its factors."""
    gate, down = config.mlp_multipliers
    factors: dict[str, float] = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config.key_multiplier * config.attention_in_multiplier,
        "q_proj": config.attention_in_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part != "in_proj":
        return tensor * factors.get(part, 1.0)
    sizes = _sizes(config)
    keys = sizes["ssm.group_count"] * sizes["ssm.state_size"]
    rows = torch.tensor([sizes["ssm.inner_size"]] * 2 + [keys] * 2 + [sizes["ssm.time_step_rank"]])
    each = torch.tensor(config.ssm_multipliers).repeat_interleave(rows)
    scale: float = config.ssm_in_multiplier
    return tensor * scale * each[:, None]
