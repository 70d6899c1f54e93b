"""Small random checkpoints of many families, created and saved by `transformers`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from specinfer.model.families import FAMILIES as OURS

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_HEAD = {"head_dim": 8}
WIDE = {"hidden_size": 64, "head_dim": 16}
"""Sizes that the compiled kernels support, for the families of our decoder."""
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "shared_expert_intermediate_size": 24,
}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
} | _EXPERTS
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 48}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
_WIDE_MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "shared_intermediate_size": 48,
    "position_embedding_type": "rope",
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 1.5,
}
_FALCON = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.7,
    "mlp_multipliers": [0.8, 0.9],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [1.4, 0.5, 0.7, 1.1, 0.9],
}
_SLIDING = {"sliding_window": 8}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "original_max_position_embeddings": 64,
}

FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama, yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "llama, linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama, dynamic rope": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, sliding window": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", _HEAD),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 64}),
    "gpt_neox": ("gpt_neox", {}),
    "afmoe": ("afmoe", _HEAD | _EXPERTS),
    "apertus": ("apertus", {}),
    "arcee": ("arcee", {}),
    "bamba": ("bamba", _MAMBA | {"attn_layer_indices": [1, 3]}),
    "biogpt": ("biogpt", {}),
    "bitnet": ("bitnet", {}),
    "bloom": ("bloom", {"n_layer": 3, "n_head": 4}),
    "codegen": ("codegen", _GPT2 | {"rotary_dim": 4}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", _SLIDING | _HEAD),
    "cwm": ("cwm", _HEAD | _SLIDING | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "deepseek_v2": ("deepseek_v2", _LATENT | {"topk_method": "greedy"}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "deepseek_v32": ("deepseek_v32", _LATENT | {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}),
    "diffllama": ("diffllama", _HEAD),
    "dots1": ("dots1", _LATENT | _HEAD),
    "ernie4_5": ("ernie4_5", _HEAD),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_layer_start_index": 1},
    ),
    "exaone4": ("exaone4", _HEAD | _SLIDING),
    "exaone_moe": ("exaone_moe", _HEAD | _EXPERTS),
    "falcon": ("falcon", {}),
    "falcon_h1": ("falcon_h1", _FALCON),
    "falcon_h1, normed": ("falcon_h1", _FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "flex_olmo": ("flex_olmo", _EXPERTS),
    "gemma": ("gemma", _HEAD),
    "gemma2": ("gemma2", _HEAD | _SLIDING | {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8}),
    "gemma3_text": (
        "gemma3_text",
        _HEAD
        | _SLIDING
        | {"query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "gemma3n_text": (
        "gemma3n_text",
        _HEAD
        | _SLIDING
        | {
            "vocab_size_per_layer_input": 97,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "num_kv_shared_layers": 2,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "gemma4_text": (
        "gemma4_text",
        _HEAD
        | _SLIDING
        | {
            "vocab_size_per_layer_input": 97,
            "hidden_size_per_layer_input": 8,
            "global_head_dim": 16,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "glm": ("glm", _HEAD),
    "glm4": ("glm4", _HEAD),
    "glm4_moe": ("glm4_moe", _LATENT | _HEAD),
    "gpt2": ("gpt2", _GPT2),
    "gpt_bigcode": ("gpt_bigcode", _GPT2),
    "gpt_neo": (
        "gpt_neo",
        {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 8},
    ),
    "gpt_oss": ("gpt_oss", _HEAD | _EXPERTS | _SLIDING),
    "gptj": ("gptj", _GPT2 | {"rotary_dim": 4}),
    "granite": ("granite", {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "granitemoe": ("granitemoe", _EXPERTS),
    "granitemoehybrid": (
        "granitemoehybrid",
        _WIDE_MAMBA | _EXPERTS | {"layer_types": ["mamba", "attention"] * 2},
    ),
    "granitemoehybrid, dense": (
        "granitemoehybrid",
        _WIDE_MAMBA | {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 2},
    ),
    "helium": ("helium", _HEAD),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _HEAD),
    "jais2": ("jais2", _HEAD),
    "jamba": (
        "jamba",
        _EXPERTS
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False},
    ),
    "jetmoe": ("jetmoe", _EXPERTS | {"kv_channels": 8, "num_key_value_heads": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    "lfm2_moe": (
        "lfm2_moe",
        _EXPERTS | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    ),
    "llama4_text": (
        "llama4_text",
        _HEAD
        | _EXPERTS
        | {
            "attention_chunk_size": 8,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
            "num_experts_per_tok": 1,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
        },
    ),
    "mamba": ("mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 8, "state_size": 16, "n_groups": 2}),
    "minimax": (
        "minimax",
        _HEAD | _EXPERTS | {"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 8},
    ),
    "minimax_m2": ("minimax_m2", _HEAD | _EXPERTS),
    "ministral": ("ministral", _HEAD | _SLIDING),
    "minicpm3": ("minicpm3", _LATENT),
    "ministral3": ("ministral3", _HEAD),
    "mixtral": ("mixtral", _HEAD | _EXPERTS),
    "modernbert-decoder": ("modernbert-decoder", {"cls_token_id": 1, "sep_token_id": 2}),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 512}),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", _HEAD),
    "nemotron_h": (
        "nemotron_h",
        _HEAD
        | _EXPERTS
        | {
            "layers_block_type": ["mamba", "attention", "moe", "mamba"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "use_mamba_kernels": False,
        },
    ),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _SLIDING),
    "olmo_hybrid": (
        "olmo_hybrid",
        {k: v for k, v in _DELTA.items() if k != "shared_expert_intermediate_size"},
    ),
    "olmoe": ("olmoe", _EXPERTS),
    "persimmon": ("persimmon", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3, longrope": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64, "sliding_window": None},
    ),
    "phimoe": ("phimoe", _EXPERTS),
    "qwen2_moe": ("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("qwen3_moe", _HEAD | _EXPERTS),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", _HEAD | _EXPERTS | _DELTA),
    "qwen3_5_text": ("qwen3_5_text", _HEAD | _DELTA),
    "qwen3_next": ("qwen3_next", _HEAD | _EXPERTS | _DELTA),
    "qwen3_next, dense": ("qwen3_next", _HEAD | _DELTA | {"mlp_only_layers": [0, 1, 2, 3]}),
    "recurrent_gemma": ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 16}),
    "rwkv": ("rwkv", {"attention_hidden_size": 32, "context_length": 512}),
    "seed_oss": ("seed_oss", _HEAD),
    "solar_open": ("solar_open", _HEAD | _EXPERTS),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", _SLIDING),
    "vaultgemma": ("vaultgemma", _HEAD | _SLIDING | {"query_pre_attn_scalar": 8}),
    "xglm": ("xglm", {"d_model": 32, "ffn_dim": 48, "num_layers": 3, "attention_heads": 4}),
    "xlstm": ("xlstm", _HEAD),
    "youtu": ("youtu", _LATENT),
}
"""(`model_type`, configuration fields in addition to `SHAPE`) by name in the table."""
HYBRIDS = tuple(
    name
    for name, (kind, _) in FAMILIES.items()
    if kind in OURS and OURS[kind].fields.__module__.startswith("specinfer.model.families.hybrid.")
)
"""Entries with recurrent layers that our kernels run."""


def random_model(name: str, seed: int = 0, **changes: Any) -> Any:
    """Return a random model of a family whose predictions differ between tokens."""
    family, own = FAMILIES[name]
    wide = WIDE if family in OURS else {}
    config = transformers.AutoConfig.for_model(family, **(SHAPE | own | wide | changes))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # ones and zeros hide a missing term
    return model


def save_random(name: str, directory: Path) -> Any:
    """Save a random model of a family as a checkpoint; return the model."""
    model = random_model(name)
    model.save_pretrained(directory)
    return model
