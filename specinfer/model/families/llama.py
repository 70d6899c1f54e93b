"""Llama and Mistral. GGUF files of Mixtral have the same architecture name."""

from typing import Any

from specinfer.model.families.base import GGUF_PARTS, Family, Fields, GgufLayout, llama_fields
from specinfer.model.families.experts import expert_counts, gguf_experts
from specinfer.model.families.positions import windows
from specinfer.model.weights.gguf_files.metadata import GgufFile


def _fields(hf: Any) -> Fields:
    return llama_fields(hf) | {"windows": windows(hf, None) if hf.model_type == "mistral" else ()}


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import LlamaConfig, MistralConfig, MixtralConfig

    fields: Fields = {"rope_parameters": file.rope()}
    if file.meta.get("expert_count", 0):
        return MixtralConfig, fields | expert_counts(file, "num_local_experts")
    if file.meta.has("attention.sliding_window"):
        window = file.meta.optional_count("attention.sliding_window")
        return MistralConfig, fields | {"sliding_window": window or None}
    return LlamaConfig, fields | {"attention_bias": file.has_bias}


LLAMA = Family(
    model_types=("llama", "mistral"),
    fields=_fields,
    gguf={"llama": GgufLayout(GGUF_PARTS | gguf_experts(), _gguf, interleaved_rope=True)},
)
