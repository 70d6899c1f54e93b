"""`specinfer models list` and `remove`: all used and pulled models, and their drafts."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specinfer.cli.main import app
from specinfer.errors import NotFoundError
from specinfer.hub import resolve_model
from specinfer.hub.local import drafts_for, local_models
from tests.support.models.gguf_models import write_model_file
from tests.support.tiny_models import tiny_transformers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two models with the same tokenizer, and one with another."""
    shapes = {"large": {"layers": 4}, "small": {"layers": 1}, "other": {"more": 3}}
    paths = {name: write_model_file(tmp_path / f"{name}.gguf", **shape) for name, shape in shapes.items()}
    for path in paths.values():
        resolve_model(str(path))
    return paths


def run(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["models", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output.splitlines()


def test_used_models_are_listed_with_their_drafts(files: dict[str, Path]) -> None:
    rows = {line.split("\t")[0]: line.split("\t") for line in run("list")}
    assert rows["large"][2:] == ["F32", "drafts: small", str(files["large"])]
    assert rows["small"][3] == "drafts: none"
    assert rows["other"][3] == "drafts: none", "another tokenizer"
    assert rows["qwen2.5-coder-1.5b"][1] == "not pulled"
    assert all(row[1].endswith(" MB") for row in (rows["large"], rows["small"]))


def test_a_file_that_is_gone_is_marked(files: dict[str, Path]) -> None:
    files["other"].unlink()
    (line,) = [line for line in run("list") if line.startswith("other\t")]
    assert line.endswith(f"{files['other']} (gone)")


def test_pulled_models_are_listed(cache: Path, files: dict[str, Path]) -> None:
    directory = cache / "models" / "owner--model"
    tiny_transformers("llama").to(torch.bfloat16).save_pretrained(directory)
    shutil.copytree(resolve_model(str(files["large"])), cache / "models" / "kept", symlinks=False)
    (cache / "models" / ".unfinished").mkdir()
    models = {model.name: model for model in local_models()}
    assert models.keys() == {"owner/model", "kept", *files}
    listed = models["owner/model"]
    numbers = sum(parameter.numel() for parameter in tiny_transformers("llama").parameters())
    assert (listed.format, listed.parameters) == ("BF16", numbers)
    assert listed.size > 2 * numbers
    assert drafts_for(listed, list(models.values())) == [], "it has no tokenizer"
    assert drafts_for(models["kept"], list(models.values())) == ["small"]


def test_removing_leaves_the_file(files: dict[str, Path]) -> None:
    directory = resolve_model(str(files["small"]))
    assert run("remove", "small") == [f"removed {directory}"]
    assert not directory.exists()
    assert files["small"].is_file()
    assert run("remove", str(files["large"]))
    assert [model.name for model in local_models()] == ["other"]
    with pytest.raises(NotFoundError, match="model = 'small':"):
        run("remove", "small")
    with pytest.raises(NotFoundError, match=r"other\.gguf'"):
        run("remove", "/elsewhere/other.gguf")
    resolve_model(str(files["small"]))
    assert {model.name for model in local_models()} == {"small", "other"}
