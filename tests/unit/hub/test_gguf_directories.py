"""GGUF files are used as models: their directory is derived once, without a copy of weights."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specinfer import LLM, SamplingParams
from specinfer.cli.main import app
from specinfer.errors import IncompatibleError, SettingError, SpecInferError
from specinfer.hub import gguf as deriving
from specinfer.hub import model_name, resolve_model
from specinfer.hub.local import local_models
from specinfer.hub.resolve import check_model_folder
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.packed import open_checkpoint
from specinfer.text.tokenizer import Tokenizer
from tests.support.models.gguf_models import model_file, write_model_file

FLOAT32 = RunnerOptions(dtype="float32", kv_tokens=256, executor="torch")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_model_file(tmp_path / "files" / "Tiny-Q4.gguf")


def forbid_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deriving, "derive", lambda *_: pytest.fail("derived again"))


@pytest.mark.parametrize("name", ["my models/Tiny.GGUF", "models/Tiny.Gguf", "tiny model"])
def test_a_file_is_a_model_whatever_its_name(file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of two parts may look like a hub id; the suffix may be in capitals."""
    monkeypatch.chdir(file.parent)
    named = Path(name)
    named.parent.mkdir(exist_ok=True)
    file.rename(named)
    pulled = CliRunner().invoke(app, ["models", "pull", name])
    assert pulled.exit_code == 0, pulled.output
    assert (resolve_model(name) / "tokenizer.json").is_file()
    assert model_name(name) == "".join(re.split(r"\.gguf$", named.name, flags=re.IGNORECASE))


@pytest.mark.parametrize("name", ["my models/tiny", "a/b c", "ü/b"])
def test_names_that_are_neither_files_nor_hub_ids_are_refused(name: str) -> None:
    pulled = CliRunner().invoke(app, ["models", "pull", name])
    assert pulled.exit_code != 0
    assert isinstance(pulled.exception, SystemExit | SpecInferError)
    with pytest.raises(SettingError, match="no such directory"):
        resolve_model(name)


def test_a_file_can_be_used_without_conversion(file: Path, cache: Path) -> None:
    with LLM(str(file), speculators="off", kv_tokens=256, executor="torch") as llm:
        (answer,) = llm.generate(["The sky"], SamplingParams(temperature=0, max_tokens=4))
    assert len(answer.outputs[0].token_ids) <= 4
    (directory,) = (cache / "gguf").iterdir()
    files = [path for path in cache.rglob("*") if path.is_file() and not path.is_symlink()]
    kilobytes = sum(path.stat().st_size for path in files if path.parent == directory) / 1000
    assert kilobytes < 100, "no second copy of the weights"
    assert (directory / "source.gguf").readlink() == file


def test_a_directory_is_derived_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model(str(file))
    forbid_derivation(monkeypatch)
    monkeypatch.chdir(file.parent)
    assert resolve_model(str(file)) == resolve_model(file.name) == first
    assert check_model_folder(str(file)) == first


def test_a_moved_file_is_the_same_model(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model(str(file))
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    file.rename(moved)
    with pytest.raises(SettingError, match=r"Tiny-Q4\.gguf"):
        check_model_folder(str(first))
    forbid_derivation(monkeypatch)
    assert resolve_model(str(moved)) == first
    assert set(open_checkpoint(first)) == set(GgufWeights(moved))


def test_a_changed_file_is_another_model(file: Path) -> None:
    first = resolve_model(str(file))
    model_file(template="{{ messages[0].content }}").write(file)
    second = resolve_model(str(file))
    assert second != first
    assert Tokenizer.load(second).has_chat_template
    with pytest.raises(SettingError, match=r"Tiny-Q4\.gguf"):
        open_checkpoint(first)


def test_another_version_of_the_code_derives_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = resolve_model(str(file))
    (directory / "tokenizer_config.json").write_text("{}")
    assert resolve_model(str(file)) == directory
    assert json.loads((directory / "tokenizer_config.json").read_text()) == {}
    monkeypatch.setattr(deriving, "_maker", lambda: "newer")
    assert resolve_model(str(file)) == directory
    assert json.loads((directory / "tokenizer_config.json").read_text())["eos_token"] == "</s>"
    assert json.loads((directory / "gguf.json").read_text())["made_by"] == "newer"
    assert not list(directory.glob(".*"))


def test_a_directory_of_an_earlier_version_is_derived_again(file: Path, cache: Path) -> None:
    """Earlier versions stored converted weights, too."""
    old = cache / "models" / "tiny"
    old.mkdir(parents=True)
    shutil.copyfile(file, old / "source.gguf")
    (old / "model.safetensors").write_bytes(b"converted")
    (old / "config.json").write_text("{}")
    assert resolve_model("tiny") == old
    assert not (old / "model.safetensors").exists()
    assert set(open_checkpoint(old)) == set(GgufWeights(file))


def test_parts_of_a_split_file_are_found_next_to_it(tmp_path: Path, file: Path) -> None:
    """The file may be a link, as in the hub's cache, where targets have other names."""
    (tmp_path / "split").mkdir()
    parts = model_file().write_parts(tmp_path / "split" / "tiny", 3)
    (tmp_path / "blobs").mkdir()
    linked = []
    for number, part in enumerate(parts):
        part.rename(tmp_path / "blobs" / f"{number:064x}")
        part.symlink_to(f"../blobs/{number:064x}")
        linked.append(part)
    directory, whole = resolve_model(str(linked[0])), GgufWeights(file)
    weights = open_checkpoint(directory)
    assert set(weights) == set(whole)
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    assert model_name(str(linked[0])) == "tiny"
    assert directory.name.startswith("tiny-")
    data = bytearray((tmp_path / "blobs" / f"{2:064x}").read_bytes())
    data[-1] ^= 1
    (tmp_path / "blobs" / f"{2:064x}").write_bytes(bytes(data))
    assert resolve_model(str(linked[0])) != directory, "every part counts"


def test_a_wrong_model_is_refused_by_a_separate_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.model.probe.load.LARGE_FILE", 0)
    directory = resolve_model(str(file))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    with pytest.raises(IncompatibleError, match=r"k_proj\.weight"):
        load_checked(directory, FLOAT32)


def test_a_checked_model_is_not_compared_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = resolve_model(str(file))
    load_checked(directory, FLOAT32)
    for name in ("probe.check.check_gguf_model", "loading.check_tensors"):
        monkeypatch.setattr(f"specinfer.model.{name}", lambda *_: pytest.fail("checked again"))
    load_checked(directory, FLOAT32)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"PK\x03\x04 a zip", r"not a GGUF file: begins with b'PK\\x03\\x04', not b'GGUF'"),
        (b"", "not a GGUF file: begins with b''"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "hi", "--local"], ["up"], ["models", "check"]])
def test_errors_name_models_that_are_not_files(
    command: list[str], content: bytes | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    arguments = [*command, str(path)] if command[0] == "models" else [*command, "--model", str(path)]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, SettingError), error
    assert str(error).startswith(f"model = '{path}': ")
    with pytest.raises(SettingError, match=reason):
        resolve_model(str(path))


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + os.urandom(200))
    with pytest.raises(IncompatibleError, match=r"model\.gguf"):
        resolve_model(str(path))
    assert list((cache / "gguf").iterdir()) == []


def test_a_cut_file_is_refused_before_torch_is_loaded(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(file.read_bytes()[:-1000])
    for loads in ("import_module", "apart"):
        monkeypatch.setattr(deriving, loads, lambda *_: pytest.fail("torch is loaded"))
    with pytest.raises(IncompatibleError, match=r"Tiny-Q4\.gguf"):
        resolve_model(str(file))
    assert list((cache / "gguf").iterdir()) == []


def test_the_error_of_a_wrong_path_has_the_right_one(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"model = '{file.parent}': .*: give the file {file}$"):
        check_model_folder(str(file.parent))
    shutil.copy(file, file.with_name("z.gguf"))
    with pytest.raises(SettingError, match=rf"give the file {file}, or another"):
        resolve_model(str(file.parent))
    for name in ("model.safetensors", "config.json", "other.bin"):
        (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(
            SettingError, match=rf"model = '{tmp_path / name}': .*; give its folder, {tmp_path}$"
        ):
            resolve_model(str(tmp_path / name))


@pytest.mark.parametrize(
    "name", ["Qwen2.5-0.5B-Instruct", "llama-3.2-1b-q4_0", "sha256-0123", "plain.gguf.bak"]
)
def test_a_name_without_the_ending_stays_whole(file: Path, name: str) -> None:
    path = file.rename(file.with_name(name))
    assert model_name(str(path)) == name
    resolve_model(str(path))
    assert [model.name for model in local_models()] == [name]
    path.unlink()
    assert [model.name for model in local_models()] == [name], "its file is gone"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/Qwen2.5-Coder-1.5B.Q4_K_M.gguf", "Qwen2.5-Coder-1.5B.Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("smollm2-135m", "smollm2-135m"),
        ("owner/model", "owner/model"),
    ],
)
def test_a_model_is_served_under_a_plain_name(model: str, name: str) -> None:
    assert model_name(model) == name


def test_a_directory_is_served_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some" / "model")
    assert model_name(".") == model_name(str(tmp_path / "some" / "model") + "/") == "model"
