"""Reads configurations from `config.json`, through `transformers`."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError, SettingError, naming
from specinfer.model.families import FAMILIES, family_of
from specinfer.model.families.positions import longest_text
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.config import ACTIVATIONS, ModelConfig, read_config, shown_config
from specinfer.system.derived import code_digest, derived, texts_digest
from specinfer.system.json_files import parse_json
from specinfer.text.special_tokens import tokenizer_end

_SAME_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
"""Activation's name in configurations -> ours."""
_WITH_TEXT_PART = ("qwen3_5", "qwen3_5_moe")
"""`model_type` of models for images and text; we run the text part."""


def load_config(directory: Path) -> ModelConfig:
    """Return a directory's configuration; `transformers` reads each configuration once."""
    parts = [texts_digest(directory), code_digest(Path(__file__).parents[1]), version("transformers")]
    with naming(directory / "config.json"):
        return read_config(
            derived("configurations", parts, lambda: shown_config(_read_by_transformers(directory)))
        )


def _read_by_transformers(directory: Path) -> ModelConfig:
    return from_transformers(*load_transformers_config(directory))


def load_transformers_config(directory: Path) -> tuple[Any, Any | None]:
    """Read a directory's configuration, and its generation configuration or None."""
    from transformers import AutoConfig, GenerationConfig

    if not (directory / "config.json").is_file():
        raise SettingError("model", str(directory), "the directory has no config.json")
    try:
        fields = parse_json((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise SettingError("model", str(directory), f"config.json: not a valid JSON file: {error}") from error
    if isinstance(fields, dict):
        check_sizes(fields)
        try:
            _check_fields(fields)
        except IncompatibleError as error:
            raise IncompatibleError(f"{directory / 'config.json'}: {error}") from error
    try:
        hf = AutoConfig.from_pretrained(directory)
    except (
        Exception
    ) as error:  # transformers raises any type for an unknown model_type or inconsistent values
        what = " ".join(str(error).split())
        raise SettingError("model", str(directory), f"config.json: {what}") from error
    hf = _text_part(hf)
    generation, path = None, directory / "generation_config.json"
    if path.is_file():
        try:
            generation = GenerationConfig.from_pretrained(directory)
        except (
            OSError,
            ValueError,
            TypeError,
            RecursionError,
        ) as error:  # not JSON, no object, or unacceptable values
            raise SettingError("model", str(path), f"cannot be read: {str(error).splitlines()[0]}") from error
    end = tokenizer_end(directory)
    known = eos_token_ids(hf, generation)
    if end is not None and end not in known:
        generation = generation or GenerationConfig()
        generation.eos_token_id = [*known, end]
    return hf, generation


def _check_fields(fields: dict[str, Any]) -> None:
    """Check fields with which `transformers` computes while it reads them."""
    text = fields.get("text_config")
    if fields.get("model_type") in _WITH_TEXT_PART and isinstance(text, dict):
        fields = text
    kind = fields.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        FAMILIES[kind].check_fields(fields)


def _text_part(hf: Any) -> Any:
    if hf.model_type not in _WITH_TEXT_PART:
        return hf
    text = hf.get_text_config()
    if (quantised := getattr(hf, "quantization_config", None)) is not None:
        text.quantization_config = quantised
    return text


def from_transformers(hf: Any, generation: Any | None = None) -> ModelConfig:
    """Convert a `transformers` configuration to ours."""
    family = family_of(hf.model_type)
    family.check_fields(vars(hf))
    family_fields = family.fields(hf)
    family_fields["activation"] = _SAME_ACTIVATIONS.get(
        family_fields["activation"], family_fields["activation"]
    )
    if family_fields["activation"] not in ACTIVATIONS:
        raise IncompatibleError(
            f"hidden_act = {family_fields['activation']!r}: supported are {', '.join(ACTIVATIONS)}"
        )
    heads = family_fields.get("heads") or hf.num_attention_heads
    common = {
        "family": hf.model_type,
        "vocab_size": hf.vocab_size,
        "hidden_size": hf.hidden_size,
        "layers": hf.num_hidden_layers,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hf.hidden_size // heads,
        "max_positions": family_fields.get("max_positions") or longest_text(hf),
        "tied_embeddings": bool(hf.tie_word_embeddings),
        "qk_norm": False,
        "eos_token_ids": eos_token_ids(hf, generation),
    }
    return ModelConfig(**(common | family_fields))


def eos_token_ids(hf: Any, generation: Any | None) -> tuple[int, ...]:
    """Return the ids of the tokens that end an answer.

    The generation configuration takes precedence over the model's. Ids outside the vocabulary are ignored.
    """
    value = getattr(generation, "eos_token_id", None)
    if value is None:
        value = getattr(hf, "eos_token_id", None)
    ids = value if isinstance(value, (list, tuple)) else [value] if value is not None else []
    if not all(isinstance(token, int) for token in ids):
        raise IncompatibleError(f"eos_token_id = {value!r}: must be a token id, or a list of token ids")
    size = hf.get_text_config().vocab_size
    return tuple(token for token in dict.fromkeys(ids) if 0 <= token < size)
