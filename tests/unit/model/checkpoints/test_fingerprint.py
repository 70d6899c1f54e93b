"""Fingerprints of models: equal for copies, different for different models."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.weights.fingerprint import _samples, weights_fingerprint
from specinfer.model.weights.source import file_fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    torch.manual_seed(0)
    tensors = {"a": torch.randn(64, 1024), "b": torch.randn(3), "c": torch.randn(300, 300).to(torch.bfloat16)}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"hidden_size": 4, "transformers_version": "5"}))
    return directory


def test_a_copy_is_the_same_model(model: Path) -> None:
    before = weights_fingerprint(model)
    (model / "config.json").write_text(json.dumps({"transformers_version": "6", "hidden_size": 4}))
    other = shutil.copytree(model, model.parent / "copy")
    assert weights_fingerprint(other) == before


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_every_tensor_counts(model: Path, name: str) -> None:
    before = weights_fingerprint(model)
    tensors = load_file(model / "model.safetensors")
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, model / "model.safetensors")
    assert weights_fingerprint(model) != before


def test_names_types_and_configuration_count(model: Path) -> None:
    fingerprints = {weights_fingerprint(model)}
    (model / "config.json").write_text(json.dumps({"hidden_size": 5}))
    fingerprints.add(weights_fingerprint(model))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    fingerprints.add(weights_fingerprint(model))
    tensors = load_file(model / "model.safetensors")
    tensors["d"] = tensors.pop("a")
    save_file(tensors, model / "model.safetensors")
    fingerprints.add(weights_fingerprint(model))
    assert len(fingerprints) == 4


def test_the_gguf_file_counts_where_there_is_one(model: Path) -> None:
    fingerprints = {weights_fingerprint(model)}
    data = bytearray(b"GGUF" + bytes(range(256)) * 40000)
    for changed in (4, -1):
        data[changed] ^= 1
        (model / "source.gguf").write_bytes(bytes(data))
        fingerprints.add(weights_fingerprint(model))
    (model / "source.gguf").rename(model / "other.gguf")
    (model / "source.gguf").symlink_to(model / "other.gguf")
    (model / "gguf.json").write_text(json.dumps({"fingerprint": file_fingerprint(model / "other.gguf")}))
    fingerprints.add(weights_fingerprint(model))
    assert len(fingerprints) == 3, "a link is the file that it leads to"


def test_a_large_model_is_sampled(model: Path) -> None:
    save_file({"a": torch.zeros(4096, 4096)}, model / "model.safetensors")
    with (model / "model.safetensors").open("rb") as file:
        spans = list(_samples(model / "model.safetensors", file))
    assert spans[-1][1] == (model / "model.safetensors").stat().st_size
    assert sum(stop - start for start, stop in spans) < 16 * 1024, "of 64 MiB"


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\xff" * 30, (20).to_bytes(8, "little") + b"not json at all, no."]
)
def test_a_broken_file_is_an_error(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(IncompatibleError, match=r"model\.safetensors"):
        weights_fingerprint(model)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="safetensors"):
        weights_fingerprint(tmp_path)
