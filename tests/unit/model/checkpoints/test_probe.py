"""A checkpoint is served if its logits equal those of `transformers` in every test of the probe."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.check import probe_generic, probe_loaded
from specinfer.model.probe.load import load_checked
from specinfer.model.probe.reference import few_layers
from specinfer.model.runner import ModelRunner
from specinfer.model.torch import generic_attention
from specinfer.system import derived
from tests.support.models.families import FAMILIES, SHAPE, random_model, save_random
from tests.support.models.models_table import row, stored_rows

OPTIONS = RunnerOptions(dtype="float32", kv_tokens=512)
RIGHT = (
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "llama4_text",
    "deepseek_v3",
    "qwen3_moe",
    "phi3, longrope",
    "gpt2",
    "qwen3_5_text",
    "falcon_mamba",
)
"""Families with soft caps, windows, sinks, chunks, latent attention, experts, odd rotary positions, learnt
positions, recurrent layers, and only recurrent layers."""
REFUSED = {
    "minimax": r"token by token .* 0 \(MiniMaxLightningAttention",
    "recurrent_gemma": "token by token",
    "bloom": "attention interface",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(derived, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "probes"


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_cannot_be_right_are_refused_at_load(name: str, tmp_path: Path) -> None:
    save_random(name, tmp_path)
    with pytest.raises(IncompatibleError, match=REFUSED[name]):
        load_checked(tmp_path, OPTIONS)


@pytest.mark.parametrize("lost", ["softcap", "s_aux", "scaling", "mask"])
def test_an_attention_that_ignores_an_argument_is_detected(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe must detect each of these possible defects of the executor."""
    model = random_model(
        {"softcap": "gemma2", "s_aux": "gpt_oss", "scaling": "granite", "mask": "gemma3_text"}[lost]
    )
    right = generic_attention.GenericPass.attend

    def forgetful(self: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name != lost}
        return right(self, module, query, key, value, None if lost == "mask" else mask, kept)

    probe_generic(copy.deepcopy(model))
    monkeypatch.setattr(generic_attention.GenericPass, "attend", forgetful)
    with pytest.raises(IncompatibleError, match="logits"):
        probe_generic(model)


def test_an_argument_of_attention_that_is_not_known_is_refused() -> None:
    module = torch.nn.Identity()
    with pytest.raises(IncompatibleError, match="Identity: attention with position_bias is not supported"):
        generic_attention._understood(
            module, {"scaling": 1.0, "position_bias": torch.zeros(1), "other": None}
        )
    with pytest.raises(IncompatibleError, match="is_causal"):
        generic_attention._understood(module, {"is_causal": False})


def test_a_right_model_is_not_probed_again(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_random("gemma", tmp_path / "model")
    examined: list[Path] = []

    def counted(directory: Path, loaded: Any) -> Any:
        examined.append(directory)
        return probe_loaded(directory, loaded)

    monkeypatch.setattr("specinfer.model.probe.check.probe_loaded", counted)
    for _ in range(2):
        load_checked(tmp_path / "model", OPTIONS)
    assert len(examined) == 1
    (record,) = own_cache.iterdir()
    assert max(json.loads(record.read_text())["distances"].values()) < 1e-4
    path = tmp_path / "model" / "model.safetensors"
    save_file({name: tensor * 1.5 for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    load_checked(tmp_path / "model", OPTIONS)
    assert len(examined) == 2, "other weights are another model"


def test_a_cache_that_cannot_be_written_keeps_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_random("gemma", tmp_path / "model")
    (tmp_path / "file").touch()
    monkeypatch.setattr(derived, "cache_directory", lambda: tmp_path / "file")
    load_checked(tmp_path / "model", OPTIONS)
    assert "probes cannot be kept" in caplog.text


def test_few_layers_have_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.model.probe.reference.WHOLE_BYTES", 0)
    small = few_layers(
        random_model(
            "gemma3_text", num_hidden_layers=6, layer_types=["sliding_attention"] * 3 + ["full_attention"] * 3
        )
    )
    assert len(small.model.layers) == 4
    probe_generic(random_model("gemma3_text"))


def test_longrope_is_served_up_to_its_original_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond the original length `transformers` rotates all keys differently, also the earlier ones."""
    save_random("phi3, longrope", tmp_path)
    assert load_checked(tmp_path, OPTIONS).config.max_positions == 64
    assert "'phi3': served up to 64 positions (rope_type = 'longrope')" in caplog.text
    caplog.clear()
    runner = load_checked(tmp_path, replace(OPTIONS, executor="generic"))
    assert runner.config.max_positions == 64 < SHAPE["max_position_embeddings"]
    with pytest.raises(IncompatibleError, match=r"position 64: .* up to 64, its original_max.*longrope"):
        runner.forward([Segment(runner.open(), [5] * 65, want_last=True)])
    assert caplog.text.count("'phi3': served up to 64, its original_max_position_embeddings") == 1


def test_the_table_has_more_than_forty_families() -> None:
    assert list(stored_rows()) == list(FAMILIES)
    assert len({family for family, _ in FAMILIES.values()}) > 80


@pytest.mark.parametrize("name", [*RIGHT, *REFUSED])
def test_the_table_has_the_results_of_the_probe(name: str, tmp_path: Path) -> None:
    assert row(name, tmp_path) == stored_rows()[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_models_that_the_table_calls_right_decode_like_transformers(name: str, tmp_path: Path) -> None:
    """Two prompts, longer and shorter than windows, are read in chunks, then decoded token by token in one batch."""
    assert row(name, tmp_path) == stored_rows()[name]
    if "| right |" not in stored_rows()[name]:
        return
    model = random_model(name)
    model.set_attn_implementation("eager")
    runner = ModelRunner(*load_model(tmp_path, OPTIONS))
    longest = min(40, runner.config.max_positions - 6)
    draw = torch.Generator().manual_seed(5)
    texts = [torch.randint(3, 97, (length,), generator=draw).tolist() for length in (longest, 7)]
    wanted = [list(text) for text in texts]
    sequences = [runner.open() for _ in texts]
    runner.forward([Segment(sequences[0], texts[0][: longest // 2])])
    logits = runner.forward(
        [Segment(s, text[s.length :], want_last=True) for s, text in zip(sequences, texts, strict=True)]
    )
    for _ in range(4):
        for text, right, actual in zip(texts, wanted, logits, strict=True):
            with torch.inference_mode():
                expected = model(torch.tensor([right]), use_cache=False).logits[0, -1]
            right.append(int(expected.argmax()))
            text.append(int(actual[0].argmax()))
        logits = runner.forward(
            [Segment(s, text[-1:], want_last=True) for s, text in zip(sequences, texts, strict=True)]
        )
    assert texts == wanted
