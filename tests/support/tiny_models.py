"""Tiny random `transformers` models of every supported family, and our runners with the same weights."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from specinfer.model.executor import HeadSetter
from specinfer.model.native.build import KERNELS_VARIABLE, choose_prebuilt
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.interfaces import Blocks
from specinfer.model.weights.trimmed import TrimmedHead
from specinfer.system.machine import processor_flags

MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss")
"""Families with experts."""
FAMILIES = (
    *("llama", "llama-rope3", "llama-untied", "llama-biased", "mistral", "qwen2", "qwen3"),
    *("opt", "opt-untied", "gpt_neox", "gpt_neox-serial"),
    *("mistral-windowed", "gemma", "gemma2", "gemma3", "phi3", "phi3-longrope"),
    *("smollm3", "granite", "olmo2", "olmo3", *MIXTURES),
)
SPECIAL = (
    *("mistral-windowed", "gemma2", "gemma3", "phi3-longrope", "smollm3", "granite", "olmo2", "olmo3"),
    *MIXTURES,
)
"""Families that together have all layer features beyond Llama's."""
_SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e5,
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "truncate": False,
}
_TWO_BASES = {
    "full_attention": {name: value for name, value in _YARN.items() if name != "truncate"},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_TRAINABLE = torch.inference_mode(False)
"""Disables inference mode while a shared model is created, as another test may need gradients."""


@_TRAINABLE
def tiny_transformers(family: str, seed: int = 0, **overrides: Any) -> Any:
    """Return a random model whose weights are so large that predictions differ between tokens."""
    shape = _SHAPE | {"initializer_range": 0.2} | overrides
    # of these families the heads share the hidden size, and each has its own keys
    options = {k: v for k, v in shape.items() if k not in ("head_dim", "num_key_value_heads")}
    options["hidden_size"] = hidden = shape["head_dim"] * shape["num_attention_heads"]
    options["initializer_range"] = shape["initializer_range"] * (32 / hidden) ** 0.5
    window = shape.pop("sliding_window", 5)
    mixed = {
        "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    gemma = shape | {"query_pre_attn_scalar": 12}
    whole = options | {"num_key_value_heads": shape["num_key_value_heads"]}
    partial = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    factors = [1 + place / 4 for place in range(shape["head_dim"] * 3 // 8)]
    longrope = partial | {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": [2 * factor for factor in factors],
        "original_max_position_embeddings": 256,
    }
    opt = options | {
        "ffn_dim": shape["intermediate_size"],
        "init_std": options["initializer_range"],
        "dropout": 0.0,
    }
    size = shape["intermediate_size"] // 8 * 4
    experts = {"num_experts_per_tok": 3, "num_experts": 6, "moe_intermediate_size": size}
    local = {"num_experts_per_tok": 2, "num_local_experts": 5}
    factors_of_granite = {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.4,
        "logits_scaling": 0.7,
    }
    configs: dict[str, Any] = {
        "llama": lambda: transformers.LlamaConfig(**shape, tie_word_embeddings=True),
        "llama-untied": lambda: transformers.LlamaConfig(**shape, tie_word_embeddings=False),
        "llama-rope3": lambda: transformers.LlamaConfig(**shape, rope_parameters=_LLAMA3_ROPE),
        "llama-biased": lambda: transformers.LlamaConfig(**shape, attention_bias=True),
        "mistral": lambda: transformers.MistralConfig(**shape, sliding_window=None),
        "qwen2": lambda: transformers.Qwen2Config(**shape),
        "qwen3": lambda: transformers.Qwen3Config(**shape),
        "opt": lambda: transformers.OPTConfig(**opt),
        "opt-untied": lambda: transformers.OPTConfig(
            **opt, tie_word_embeddings=False, activation_function="gelu"
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**options, rotary_pct=0.5),
        "mistral-windowed": lambda: transformers.MistralConfig(**shape, sliding_window=window),
        "gemma": lambda: transformers.GemmaConfig(**shape),
        "gemma2": lambda: transformers.Gemma2Config(
            **gemma, **mixed, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
        ),
        "gemma3": lambda: transformers.Gemma3TextConfig(**gemma, **mixed, rope_parameters=_TWO_BASES),
        "phi3": lambda: transformers.Phi3Config(**whole, rope_parameters=partial, sliding_window=window),
        "phi3-longrope": lambda: transformers.Phi3Config(
            **whole, rope_parameters=longrope, original_max_position_embeddings=256
        ),
        "smollm3": lambda: transformers.SmolLM3Config(**shape, no_rope_layers=[1, 0, 1]),
        "granite": lambda: transformers.GraniteConfig(**shape, **factors_of_granite),
        "olmo2": lambda: transformers.Olmo2Config(**shape),
        "olmo3": lambda: transformers.Olmo3Config(**shape, **mixed, rope_parameters=_TWO_BASES),
        "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
            **shape, **experts, norm_topk_prob=True, mlp_only_layers=[0]
        ),
        "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
            **shape, **experts, shared_expert_intermediate_size=size + 6, decoder_sparse_step=2
        ),
        "mixtral": lambda: transformers.MixtralConfig(**shape, **local, sliding_window=window),
        "olmoe": lambda: transformers.OlmoeConfig(**whole, num_experts_per_tok=2, num_experts=7),
        "granitemoe": lambda: transformers.GraniteMoeConfig(**whole, **local, **factors_of_granite),
        "gpt_oss": lambda: transformers.GptOssConfig(
            **shape, **local, **mixed, swiglu_limit=0.5, rope_parameters=_YARN
        ),
        "gpt_neox-serial": lambda: transformers.GPTNeoXConfig(**options, use_parallel_residual=False),
    }
    torch.manual_seed(seed)
    # of all kinds of attention only this one applies soft caps
    model = transformers.AutoModelForCausalLM.from_config(
        configs[family](), attn_implementation="eager"
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # zeros and ones would hide a missing term
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return model


def silence_attention(model: Any) -> None:
    """Make attention add zero, since the cache of bfloat16 models rounds differently."""
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)


GENERIC = ("opt", "gpt_neox", "gpt2", "phi", "stablelm", "gemma", "olmo2")


@_TRAINABLE
def tiny_generic(family: str, seed: int = 0, **overrides: Any) -> Any:
    """Return a random model for the generic executor; our decoder does not support most of these families."""
    shape = {k: v for k, v in _SHAPE.items() if k != "head_dim"}
    extra: dict[str, dict[str, Any]] = {
        "opt": {"ffn_dim": 56, "word_embed_proj_dim": 32, "dropout": 0.0, "activation_function": "relu"},
        "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512},
        "gemma": {"head_dim": 8},
    }
    config = transformers.AutoConfig.for_model(family, **(shape | extra.get(family, {}) | overrides))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model


def runner_of(model: Any, **options: Any) -> ModelRunner:
    """Return our runner with the weights of a `transformers` model, in float32."""
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    defaults: dict[str, Any] = {"dtype": "float32", "kv_tokens": 2048, "executor": "torch"}
    return ModelRunner.build(from_transformers(model.config), weights, RunnerOptions(**(defaults | options)))


class _FloatRows:
    """A model's embedding table, with rows in float32."""

    def __init__(self, model: Any) -> None:
        self._table: torch.Tensor = model.get_input_embeddings().weight.detach().float()

    def some_blocks(self, name: str, rows: Sequence[int]) -> Blocks:
        return "F32", self._table[list(rows)]


def replaceable_head(model: Any, runner: ModelRunner, token_ids: Sequence[int]) -> TrimmedHead:
    """Give a runner a head of these tokens whose rows can be replaced; return the head."""
    assert isinstance(runner._executor, HeadSetter)
    runner.head = TrimmedHead(_FloatRows(model), "", token_ids, runner._executor.set_head)
    return runner.head


def rounds_activations() -> bool:
    """Return whether the kernels round activations to bfloat16 on this processor."""
    if "avx512_bf16" not in processor_flags() or os.environ.get("CXXFLAGS"):
        return False
    directory = os.environ.get(KERNELS_VARIABLE)
    prebuilt = directory and choose_prebuilt(Path(directory), processor_flags())
    return not prebuilt or "-avx512bf16-" in prebuilt.name


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the logits [T, V] of `transformers` for one sequence."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
