"""Each field of a configuration with recurrent layers is right, ignored, or refused with name and value."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from specinfer.errors import IncompatibleError, SpecInferError
from specinfer.model.families.hybrid.qwen import QWEN_3_5
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from tests.support.models.families import FAMILIES as ENTRIES
from tests.support.models.families import HYBRIDS, SHAPE, WIDE

OF_LIBRARY = {"model_type", "transformers_version", "id2label", "label2id", "dtype", "architectures"}
"""Fields that only `transformers` uses."""
WRONG: dict[str, Any] = {"text": "x", "list": [1, "x"], "object": {"a": 1}, "negative": -1, "zero": 0}


def fields_of(entry: str) -> dict[str, Any]:
    kind, own = ENTRIES[entry]
    config = transformers.AutoConfig.for_model(kind, **(SHAPE | own | WIDE)).to_dict()
    return {name: value for name, value in config.items() if name not in OF_LIBRARY} | {"model_type": kind}


def read(fields: dict[str, Any], directory: Path) -> ModelConfig | str:
    """Return the configuration, or the text of the error."""
    (directory / "config.json").write_text(json.dumps(fields))
    try:
        return load_config(directory)
    except SpecInferError as error:
        return str(error)


def changed(fields: dict[str, Any], value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in fields.keys() - {"model_type"}:
        yield name, fields | {name: value}
    for name in fields.get("rope_parameters") or {}:
        yield name, fields | {"rope_parameters": fields["rope_parameters"] | {name: value}}


def test_there_are_hybrids() -> None:
    assert {"qwen3_next", "lfm2", "granitemoehybrid", "falcon_h1", "mamba2"} <= set(HYBRIDS)
    assert set(QWEN_3_5.model_types) <= set(HYBRIDS)


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("entry", HYBRIDS)
def test_a_field_of_a_wrong_type_or_size_is_ignored_or_named(entry: str, kind: str, tmp_path: Path) -> None:
    fields = fields_of(entry)
    right = read(fields, tmp_path)
    assert isinstance(right, ModelConfig)
    for name, other in changed(fields, WRONG[kind]):
        outcome = read(other, tmp_path)
        if isinstance(outcome, str):
            assert name in outcome
            assert repr(WRONG[kind]) in outcome or "type" in outcome
        elif kind in ("text", "list", "object"):
            assert outcome == right, name


@pytest.mark.parametrize("entry", HYBRIDS)
def test_null_is_the_default_of_transformers_or_named(entry: str, tmp_path: Path) -> None:
    fields = fields_of(entry)
    for name, other in changed(fields, None):
        outcome = read(other, tmp_path)
        if isinstance(outcome, str):
            assert name in outcome
            assert "None" in outcome


@pytest.mark.parametrize("entry", HYBRIDS)
def test_a_missing_field_has_the_default_of_transformers(entry: str, tmp_path: Path) -> None:
    """`transformers` refuses a default that does not fit the other fields."""
    fields = fields_of(entry)
    default = type(transformers.AutoConfig.for_model(fields["model_type"]))
    for name in fields.keys() - {"model_type"}:
        absent = read({other: value for other, value in fields.items() if other != name}, tmp_path)
        assert isinstance(absent, ModelConfig) or name in absent or "validation error" in absent, absent
        if isinstance(getattr(default, name, None), int | float):
            assert absent == read(fields | {name: getattr(default, name)}, tmp_path), name


@pytest.mark.parametrize(
    ("entry", "kinds", "kind"),
    [
        ("granitemoehybrid", ["mamba", "sliding_attention"] * 2, "sliding_attention"),
        ("granitemoehybrid", ["mamba", "moe"] * 2, "moe"),
        ("qwen3_next", ["linear_attention", "sliding_attention"] * 2, "sliding_attention"),
        ("lfm2", ["conv", "linear_attention"] * 2, "linear_attention"),
    ],
)
def test_unknown_kinds_of_layers_are_refused(entry: str, kinds: list[str], kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields_of(entry) | {"layer_types": kinds}))
    with pytest.raises((IncompatibleError, SpecInferError), match=f"layer_types.*{kind}"):
        load_config(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "falcon_h1"])
def test_a_width_below_the_number_of_heads_is_named(kind: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(kind).to_dict() | {"hidden_size": 3}
    config.pop("head_dim", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecInferError, match=r"hidden_size|config\.json"):
        load_config(tmp_path)
