"""SmolLM3: Llama without positions in every fourth layer."""

from typing import Any

from specinfer.model.families.base import GGUF_PARTS, Family, Fields, GgufLayout, llama_fields
from specinfer.model.families.positions import NO_ROTARY, windows
from specinfer.model.weights.gguf_files.metadata import GgufFile


def _fields(hf: Any) -> Fields:
    turned = hf.no_rope_layers[: hf.num_hidden_layers]
    rotary = tuple(0 if layer else NO_ROTARY for layer in turned)
    return llama_fields(hf) | {
        "windows": windows(hf, hf.layer_types),
        "layer_rotary": rotary if any(rotary) else (),
    }


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import SmolLM3Config

    return SmolLM3Config, {"rope_parameters": file.rope(), "attention_bias": file.has_bias}


SMOLLM3 = Family(
    model_types=("smollm3",),
    fields=_fields,
    gguf={"smollm3": GgufLayout(GGUF_PARTS, _gguf, interleaved_rope=True)},
)
