"""Qwen 2 and 3: QKV biases, or query and key norms."""

from typing import Any

from specinfer.model.families.base import GGUF_PARTS, Family, Fields, GgufLayout, llama_fields
from specinfer.model.families.positions import windows
from specinfer.model.weights.gguf_files.metadata import GgufFile


def _fields(hf: Any) -> Fields:
    own = {"qk_norm": hf.model_type == "qwen3", "windows": windows(hf, hf.layer_types)}
    return llama_fields(hf) | own


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Qwen2Config, Qwen3Config

    fields: Fields = {"rope_parameters": file.rope(), "use_sliding_window": False}
    if file.meta.architecture == "qwen2":
        return Qwen2Config, fields
    return Qwen3Config, fields | {"attention_bias": file.has_bias}


_LAYOUT = GgufLayout(GGUF_PARTS, _gguf)
QWEN = Family(model_types=("qwen2", "qwen3"), fields=_fields, gguf={"qwen2": _LAYOUT, "qwen3": _LAYOUT})
