"""GGUF files of small models in the layout of llama.cpp's converter; tests may change them before writing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.support.models import state_space_files
from tests.support.models.block_models import stored
from tests.support.models.state_space_files import interleaved

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    **{f"mlp.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
    **{f"block_sparse_moe.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
    **{f"mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_POST = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_FUSED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
_GPT_OSS = {"post_attention_layernorm": "post_attention_norm"}
_LINEAR = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_SHORT = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    **{f"conv.{name}": f"shortconv.{name}" for name in ("in_proj", "conv", "out_proj")},
}
_OF_ARCHITECTURE = {
    "gpt-oss": _GPT_OSS,
    "lfm2": _SHORT,
    "qwen35": _LINEAR,
    "qwen35moe": _LINEAR,
    "qwen3next": _LINEAR | {"linear_attn.in_proj_ba": "ssm_ba"},
    "gemma2": _POST,
    "gemma3": _POST,
    "olmo2": _POST,
    "phi3": _FUSED,
}
_ARCHITECTURES = {
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}
_INTERLEAVED = ("llama", "smollm3", "granite", "granitemoe")
_TOP = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "lm_head": "output",
}


def _expert_values(config: Any) -> dict[str, Any]:
    """Return the metadata keys of models with experts."""
    if getattr(config, "num_experts_per_tok", None) is None:
        return {}
    sizes = {
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
    counts = {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    stated = {key: getattr(config, name) for key, name in sizes.items() if hasattr(config, name)}
    if config.model_type == "gpt_oss":
        stated["expert_feed_forward_length"] = config.intermediate_size
    return counts | (stated if config.model_type.startswith(("qwen", "gpt_oss")) else {})


def _gpt_oss_parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a GGUF file for a tensor of GPT-OSS: matrices [outputs, inputs], gate and up separate."""
    stem, kind = (name[:-5], "bias") if name.endswith("_bias") else (name, "weight")
    if tensor.dim() == 3:
        tensor = tensor.transpose(1, 2)
    if not stem.endswith("gate_up_proj"):
        yield f"{stem}.{kind}", tensor
        return
    for first, part in enumerate(("gate", "up")):
        yield stem.replace("gate_up", part) + f".{kind}", tensor[:, first::2]


def _apart(fused: torch.Tensor, config: Any) -> dict[str, torch.Tensor]:
    """Return the separate tensors of a GGUF file for a fused projection of Qwen 3 Next."""
    keys, size = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    widths = torch.split(fused.reshape(keys, 2 * (size + values), -1), [size, size, values, values], 1)
    query, key, value, gate = (part.flatten(0, 1) for part in widths)
    return {"qkv": torch.cat([query, key, value]), "z": gate}


def _each_tensor(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a model, with gate and up of experts separate."""
    for name, tensor in model.state_dict().items():
        if model.config.model_type == "gpt_oss" and (".experts." in name or name.endswith("sinks")):
            yield from _gpt_oss_parts(name, tensor)
        elif name.endswith(".in_proj_qkvz.weight"):
            for part, rows in _apart(tensor, model.config).items():
                yield name.replace("qkvz", part), rows
        elif name.endswith(".experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.chunk(2, 1), strict=True):
                yield name.replace("gate_up_proj", f"{part}_proj.weight"), half
        elif name.endswith(".experts.down_proj"):
            yield f"{name}.weight", tensor
        else:
            yield name, tensor.flatten() if name.endswith("shared_expert_gate.weight") else tensor


def tiled(part: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Return a tensor of a gated delta net in llama.cpp's order of value heads."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    if part == "out_proj":
        return tiled("", tensor.T, config).T
    if part == "norm":
        return tensor
    before = 2 * keys * config.linear_key_head_dim if part in ("in_proj_qkv", "conv1d") else 0
    grouped = tensor[before:].reshape(keys, values // keys, -1, *tensor.shape[1:])
    return torch.cat([tensor[:before], grouped.transpose(0, 1).reshape(tensor[before:].shape)])


def _own_values(architecture: str, config: Any, rope: dict[str, Any]) -> dict[str, Any]:
    """Return the additional metadata keys of one architecture."""
    match architecture:
        case "qwen35" | "qwen35moe" | "qwen3next":
            return {
                "full_attention_interval": 1 + config.layer_types.index("full_attention"),
                "rope.dimension_sections": rope.get("mrope_section", []),
                "attention.key_length": config.head_dim,
                "attention.value_length": config.head_dim,
                "ssm.conv_kernel": config.linear_conv_kernel_dim,
                "ssm.state_size": config.linear_key_head_dim,
                "ssm.group_count": config.linear_num_key_heads,
                "ssm.time_step_rank": config.linear_num_value_heads,
                "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            }
        case "lfm2":
            heads = config.num_key_value_heads
            return {
                "attention.head_count_kv": [heads * (kind != "conv") for kind in config.layer_types],
                "shortconv.l_cache": config.conv_L_cache,
            }
        case "gemma2":
            return {
                "attn_logit_softcapping": config.attn_logit_softcapping,
                "final_logit_softcapping": config.final_logit_softcapping,
            }
        case "granite" | "granitemoe":
            return {
                "embedding_scale": config.embedding_multiplier,
                "attention.scale": config.attention_multiplier,
                "residual_scale": config.residual_multiplier,
                "logit_scale": config.logits_scaling,
            }
        case "gpt-oss":
            return {
                "rope.scaling.type": rope["rope_type"],
                "rope.scaling.factor": float(rope["factor"]),
                "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            }
        case "phi3":
            original = config.original_max_position_embeddings
            scale = config.max_position_embeddings / original
            factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
            attention = {"rope.scaling.attn_factor": factor} if "short_factor" in rope else {}
            return {"rope.scaling.original_context_length": original, **attention}
        case "olmo2" if hasattr(config, "layer_types"):
            pattern = [kind == "sliding_attention" for kind in config.layer_types]
            return {"attention.sliding_window_pattern": pattern}
    return {}


def fills_blocks(matrix: Any, kind: "gguf.GGMLQuantizationType") -> bool:
    """Return whether each row is a whole number of blocks; rows of convolutions are not."""
    return bool(matrix.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0)


@dataclass
class Gguf:
    """Content of a GGUF file."""

    architecture: str
    values: dict[str, Any]
    """Metadata of the architecture, without its prefix."""
    others: dict[str, Any] = field(default_factory=dict)
    """Other metadata."""
    tensors: dict[str, Any] = field(default_factory=dict)
    kind: "gguf.GGMLQuantizationType | None" = None
    """Type of the matrices, random blocks for K and IQ types; None: float32."""

    @classmethod
    def of(cls, model: Any, kind: "gguf.GGMLQuantizationType | None" = None) -> "Gguf":
        """Return the file of a model that our decoder supports."""
        config = model.config
        if config.model_type in state_space_files.ARCHITECTURES:
            values, tensors = state_space_files.values_of(config), state_space_files.tensors_of(model)
            return cls(state_space_files.ARCHITECTURES[config.model_type], values, {}, tensors, kind)
        architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
        ropes = config.rope_parameters
        rope = ropes.get("full_attention", ropes)
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        values = {
            "block_count": config.num_hidden_layers,
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": getattr(config, "norm_eps", None) or config.rms_norm_eps,
            "rope.freq_base": rope["rope_theta"],
            "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
            "vocab_size": config.vocab_size,
        }
        if architecture == "qwen35moe":
            del values["feed_forward_length"]  # all of its layers have experts
        if architecture.startswith("gemma"):
            values |= {"attention.key_length": head, "attention.value_length": head}
        if getattr(config, "sliding_window", None):
            values["attention.sliding_window"] = config.sliding_window
        by_key = _own_values(architecture, config, rope) | _expert_values(config)
        file = cls(architecture, values | by_key, kind=kind)
        file._add_tensors(model)
        if "short_factor" in rope:
            for name in ("short", "long"):
                factors = np.array(rope[f"{name}_factor"], np.float32)
                file.tensors[f"rope_factors_{name}.weight"] = factors
        return file

    def _add_tensors(self, model: Any) -> None:
        config, parts = model.config, _PARTS | _OF_ARCHITECTURE.get(self.architecture, {})
        for name, tensor in _each_tensor(model):
            stored = tensor.detach().float()
            stem, kind = name.removeprefix("model.").rsplit(".", 1)
            _, _, linear = name.partition(".linear_attn.")
            if linear:
                if self.architecture != "qwen3next":
                    stored = tiled(linear.removesuffix(".weight"), stored, config)
                if linear in ("A_log", "dt_bias"):
                    layer = stem.split(".")[1]
                    target, stored = {"A_log": ("ssm_a", -stored.exp()), "dt_bias": ("ssm_dt.bias", stored)}[
                        linear
                    ]
                    self.tensors[f"blk.{layer}.{target}"] = np.ascontiguousarray(stored.numpy())
                    continue
                stored = stored[:, 0] if linear == "conv1d.weight" else stored
            if stem == "lm_head" and config.tie_word_embeddings:
                continue
            stored = stored[:, 0] if stem.endswith("conv.conv") else stored
            raised = self.architecture.startswith("gemma") or "linear_attn.conv1d" in parts
            if raised and stem.endswith("norm") and not linear:
                stored = stored + 1
            target = _TOP.get(stem)
            if target is None:
                _, layer, part = stem.split(".", 2)
                target = f"blk.{layer}.{parts[part]}"
                heads = {
                    "self_attn.q_proj": config.num_attention_heads,
                    "self_attn.k_proj": config.num_key_value_heads,
                }
                if self.architecture in _INTERLEAVED and part in heads:
                    stored = interleaved(stored, heads[part])
            self.tensors[f"{target}.{kind}"] = np.ascontiguousarray(stored.numpy())

    def write(self, path: Path) -> Path:
        self._write(path, self.tensors, {})
        return path

    def write_parts(self, stem: Path, count: int) -> list[Path]:
        """Write the file in parts, as `llama-gguf-split` names them."""
        names, paths = list(self.tensors), []
        for part in range(count):
            paths.append(stem.with_name(f"{stem.name}-{part + 1:05}-of-{count:05}.gguf"))
            share = {name: self.tensors[name] for name in names[part::count]}
            split = {"split.no": part, "split.count": count, "split.tensors.count": len(names)}
            self._write(paths[-1], share, split, whole=not part)
        return paths

    def _write(self, path: Path, tensors: dict[str, Any], split: dict[str, int], whole: bool = True) -> None:
        writer = gguf.GGUFWriter(path, self.architecture)
        values = (
            {f"{self.architecture}.{name}": value for name, value in self.values.items()} if whole else {}
        )
        for name, value in {**values, **self.others, **split}.items():
            match value:
                case bool():
                    writer.add_bool(name, value)
                case int():
                    (writer.add_int32 if value < 0 else writer.add_uint32)(name, value)
                case float():
                    writer.add_float32(name, value)
                case list():
                    writer.add_array(name, value)
                case _:
                    writer.add_string(name, str(value))
        for name, array in tensors.items():
            matrix = array.ndim > 1 and "gate_inp" not in name and name.endswith(".weight")
            matrix &= "_norm" not in name
            if self.kind is not None and matrix and fills_blocks(array, self.kind):
                writer.add_tensor(name, stored(self.kind.name, array).numpy(), raw_dtype=self.kind)
            else:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
