"""`specinfer models check`: a report for a right model, one line with the reason for a wrong one."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specinfer.cli.models import models_app
from specinfer.errors import IncompatibleError
from specinfer.model.probe.texts import describe_texts
from tests.support.models.families import save_random
from tests.unit.test_tokenizer_files import sentencepiece


def test_a_right_model_is_shown_with_its_distances(tmp_path: Path) -> None:
    save_random("gemma2", tmp_path)
    result = CliRunner().invoke(models_app, ["check", str(tmp_path)])
    assert result.exit_code == 0, result.output
    *lines, verdict = result.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        "whole",
        "token by token",
        "in two chunks",
        "with another request",
        "as a tree",
        "far from zero",
        "context",
        "tokenizer",
    ]
    assert lines[-2:] == [
        "context\t512",
        f"tokenizer\tmodel = {str(tmp_path)!r}: the directory has no tokenizer.json",
    ]
    assert verdict.startswith("right: native executor")


@pytest.mark.parametrize(
    ("model", "changes", "tokenizer", "conversations"),
    [
        ("phi3, longrope", {}, "as transformers has it", "a template"),
        ("llama", {"chat_template": None}, "as transformers has it", "no template"),
        ("llama", {"chat_template": "{% if %}"}, "as transformers has it", "default: Expected an expression"),
        (
            "llama",
            {"tokenizer_class": "LlamaTokenizer"},
            "as tokenizer.json has it; LlamaTokenizer of transformers differs for ' The sky'",
            "a template",
        ),
    ],
)
def test_texts_of_a_checkpoint_are_described(
    model: str, changes: dict[str, Any], tokenizer: str, conversations: str, tmp_path: Path
) -> None:
    save_random(model, tmp_path)
    sentencepiece().save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "</s>", "chat_template": "{{ messages }}"} | changes
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    described = dict(describe_texts(tmp_path))
    long = model != "llama"
    assert described["context"] == ("64 of 512 (rope_type = 'longrope')" if long else "512")
    assert (described["ends"], described["tokenizer"]) == ("2 '</s>'", tokenizer)
    assert described["conversations"].startswith(conversations)


def test_a_model_without_positions_is_described(tmp_path: Path) -> None:
    save_random("mamba2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert dict(describe_texts(tmp_path))["context"] == f"{1 << 20}"


def test_a_model_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    save_random("minimax", tmp_path)
    result = CliRunner().invoke(models_app, ["check", str(tmp_path)])
    assert isinstance(result.exception, IncompatibleError)
    assert "MiniMaxLightningAttention" in str(result.exception)
