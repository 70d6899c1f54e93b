"""Granite 3: Llama with factors on embeddings, attention scores, residuals and logits."""

from typing import Any

from specinfer.model.families.base import GGUF_PARTS, Family, Fields, GgufLayout, llama_fields
from specinfer.model.weights.gguf_files.metadata import GgufFile

FACTORS = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
"""Names of the factors in `config.json` -> in GGUF files."""
FACTOR_NUMBERS = dict.fromkeys(FACTORS, 0)
"""The factors as fields of `Family.numbers`: single numbers."""


def factor_fields(hf: Any) -> Fields:
    return {
        "embedding_scale": float(hf.embedding_multiplier),
        "attention_scale": float(hf.attention_multiplier),
        "residual_scale": float(hf.residual_multiplier),
        "logit_scale": 1 / hf.logits_scaling,
    }


def granite_fields(hf: Any) -> Fields:
    return llama_fields(hf) | factor_fields(hf)


def granite_factors(file: GgufFile) -> Fields:
    factors = {name: file.meta.number(short) for name, short in FACTORS.items()}
    return factors | {"rope_parameters": file.rope(), "attention_bias": file.has_bias}


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import GraniteConfig

    return GraniteConfig, granite_factors(file)


GRANITE = Family(
    model_types=("granite",),
    fields=granite_fields,
    numbers=FACTOR_NUMBERS,
    gguf={"granite": GgufLayout(GGUF_PARTS, _gguf, interleaved_rope=True)},
)
