"""A checkpoint with a missing, additional or wrongly shaped tensor is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.files import SafetensorsWeights
from tests.support.tiny_models import tiny_transformers

OPTIONS = RunnerOptions(dtype="float32", kv_tokens=256)
OWN = ("llama", "llama-untied", "llama-biased", "mistral", "qwen2", "qwen3", "opt", "gpt_neox")
TENSORS = "model.safetensors"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    saved = {}
    for family in (*OWN, "gemma2"):
        saved[family] = tmp_path_factory.mktemp(family)
        if family == "gemma2":
            from tests.support.models.families import save_random

            save_random("gemma2", saved[family])
        else:
            tiny_transformers(family).save_pretrained(saved[family])
    return saved


def changed(source: Path, directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write a copy of a checkpoint with other tensors."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text((source / "config.json").read_text())
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, directory / TENSORS, {"format": "pt"}
    )
    return directory


@settings(max_examples=60)
@given(st.data())
def test_one_tensor_dropped_reshaped_or_added_is_refused(
    checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    family = data.draw(st.sampled_from(sorted(checkpoints)))
    tensors = load_file(checkpoints[family] / TENSORS)
    name = data.draw(st.sampled_from(sorted(tensors)))
    match data.draw(
        st.sampled_from(["drop", "rename", "fewer rows", "more rows", "another dimension", "add"])
    ):
        case "drop":
            del tensors[name]
        case "rename":
            tensors[f"{name}_scale"] = tensors.pop(name)
        case "fewer rows":
            tensors[name] = tensors[name][:-1]
        case "more rows":
            tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
        case "another dimension":
            tensors[name] = tensors[name][None]
        case "add":
            tensors[f"{name}_scale"] = torch.ones(1)
    directory = changed(checkpoints[family], tmp_path_factory.mktemp("changed"), tensors)
    part = name.rpartition(".")[0].rpartition(".")[2]
    with pytest.raises(IncompatibleError, match="embed_out|lm_head" if part == "embed_out" else part):
        load_model(directory, OPTIONS)


@pytest.mark.parametrize("family", OWN)
def test_whole_checkpoints_are_loaded(family: str, checkpoints: dict[str, Path]) -> None:
    load_model(checkpoints[family], OPTIONS)


def test_a_tied_head_must_be_the_embedding(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(checkpoints["llama"] / TENSORS)
    embedding = tensors["model.embed_tokens.weight"]
    load_model(
        changed(checkpoints["llama"], tmp_path, {**tensors, "lm_head.weight": embedding.clone()}), OPTIONS
    )
    other = changed(checkpoints["llama"], tmp_path, {**tensors, "lm_head.weight": embedding * 2})
    with pytest.raises(IncompatibleError, match="tie_word_embeddings = true:"):
        load_model(other, OPTIONS)


def test_an_adapter_next_to_the_weights_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    directory = changed(checkpoints["llama"], tmp_path, load_file(checkpoints["llama"] / TENSORS))
    (directory / "adapter_config.json").write_text("{}")
    with pytest.raises(IncompatibleError, match=r"adapter_config\.json"):
        load_model(directory, OPTIONS)


@pytest.mark.native
def test_a_matrix_of_another_shape_never_reaches_the_kernels() -> None:
    """`ModelRunner.build` checks the shapes of weights that do not come from files, too."""
    model = tiny_transformers("llama-untied", head_dim=16, hidden_size=64)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name in (
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.norm.weight",
    ):
        short = weights | {name: weights[name][:-1]}
        with pytest.raises(IncompatibleError, match=name):
            ModelRunner.build(
                from_transformers(model.config),
                short,
                RunnerOptions(dtype="float32", kv_tokens=64, executor="native"),
            )


def indexed(directory: Path, files: dict[str, dict[str, torch.Tensor]]) -> dict[str, str]:
    for file, tensors in files.items():
        save_file(tensors, directory / file)
    return {name: file for file, tensors in files.items() for name in tensors}


def test_the_index_must_match_the_files(tmp_path: Path) -> None:
    one, two = {"a": torch.ones(2)}, {"b": torch.ones(3)}
    listed = indexed(tmp_path, {"model-1.safetensors": one, "model-2.safetensors": two})

    def write(weight_map: object) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    write(listed)
    assert set(SafetensorsWeights(tmp_path)) == {"a", "b"}
    for wrong, reason in (
        (
            listed | {"c": "model-3.safetensors"},
            "lists model-3.safetensors, which is missing: copy that file into",
        ),
        (listed | {"c": "model-2.safetensors"}, "disagree about the tensor c"),
        ({"a": "model-1.safetensors", "b": "model-1.safetensors"}, "disagree about the tensor b"),
        ([1], "must have weight_map"),
    ):
        write(wrong)
        with pytest.raises(IncompatibleError, match=reason):
            SafetensorsWeights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    with pytest.raises(IncompatibleError, match="weight_map"):
        SafetensorsWeights(tmp_path)
    write(listed)
    save_file(one, tmp_path / TENSORS)
    with pytest.raises(IncompatibleError, match=r"model\.safetensors"):
        SafetensorsWeights(tmp_path)


def test_files_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no \*\.safetensors"):
        SafetensorsWeights(tmp_path)
    indexed(tmp_path, {"x.safetensors": {"a": torch.ones(2)}, "y.safetensors": {"a": torch.ones(2)}})
    with pytest.raises(
        IncompatibleError,
        match=r"tensor a is in x\.safetensors and in y\.safetensors",
    ):
        SafetensorsWeights(tmp_path)
    (tmp_path / "y.safetensors").write_bytes(b"nothing of that kind")
    with pytest.raises(IncompatibleError, match="not a safetensors file"):
        SafetensorsWeights(tmp_path)
