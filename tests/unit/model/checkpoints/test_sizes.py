"""Impossible sizes in configurations are refused by name before anything is allocated."""

import json
from pathlib import Path
from typing import Any

import pytest

from specinfer.drafters.checkpoint import load_draft
from specinfer.errors import IncompatibleError
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.config_files import load_config
from tests.support.models.published import METHODS, save_published, save_target

SHAPE = ("head_dim", "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")
ABSURD = (10**9, 10**30, -1, -(10**12))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target") / "target")


def put(directory: Path, field: str, value: Any, *inside: str) -> None:
    """Replace a field of a `config.json`, inside nested objects if given."""
    path = directory / "config.json"
    whole = json.loads(path.read_text())
    fields = whole
    for name in inside:
        fields = fields[name][0] if isinstance(fields[name], list) else fields[name]
    fields[field] = value
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_of_absurd_size_is_refused(method: str, target: Path, tmp_path: Path) -> None:
    draft = save_published(tmp_path / method, method, target)
    usual = (draft / "config.json").read_text()
    for field in SHAPE:
        for value in (*ABSURD, 0):
            put(draft, field, value, "transformer_layer_config")
            with pytest.raises(IncompatibleError, match=f"transformer_layer_config.{field} = {value}:"):
                load_draft(draft, target)
            (draft / "config.json").write_text(usual)
    put(draft, "speculative_tokens", 10**9, "speculators_config", "proposal_methods")
    with pytest.raises(IncompatibleError, match=r"methods\.speculative_tokens = 1000000000:"):
        load_draft(draft, target)
    (draft / "config.json").write_text(usual)
    if method in ("dflash", "dspark"):
        put(draft, "block_size", 10**9)
        with pytest.raises(IncompatibleError, match="block_size = 1000000000:"):
            load_draft(draft, target)


def test_a_draft_has_no_more_positions_than_its_target(target: Path, tmp_path: Path) -> None:
    draft = save_published(tmp_path / "mtp", "mtp", target, layers={"max_position_embeddings": 2**24})
    loaded: Any = load_draft(draft, target)
    assert loaded.weights.config.max_positions == load_config(target).max_positions


def test_a_model_of_absurd_size_is_refused(target: Path) -> None:
    usual = (target / "config.json").read_text()
    try:
        for field in (*SHAPE, "num_attention_heads", "intermediate_size"):
            for value in ABSURD:
                put(target, field, value)
                with pytest.raises(
                    IncompatibleError, match=f"^{target}/config.json: {field} = {value}: must be"
                ):
                    load_config(target)
                (target / "config.json").write_text(usual)
    finally:
        (target / "config.json").write_text(usual)


def test_nested_sizes_are_checked_and_lists_are_not() -> None:
    with pytest.raises(IncompatibleError, match=r"text_config.n_layer = 1e\+18"):
        check_sizes({"text_config": {"n_layer": 1e18}})
    check_sizes({"intermediate_size": [16384] * 35, "num_attention_heads": None, "head_dim": 0})
