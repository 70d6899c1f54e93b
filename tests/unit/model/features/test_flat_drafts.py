"""DFlash and JetSpec checkpoints in `transformers`' layout: targets, layers, and refusals by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.drafters.checkpoint import load_draft
from specinfer.drafters.draft import draft_group, method_of
from specinfer.drafters.pools import load_drafters
from specinfer.drafters.published.flat import default_layer_ids
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Segment
from tests.support.models.flat_drafts import IDS, save_flat
from tests.support.models.published import save_target
from tests.support.tiny_models import runner_of, tiny_transformers

CONTEXT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33, 12]
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 256, "min_path_probability": 0.0}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return save_flat(tmp_path / "draft", causal=True)


def drafter_of(directory: Path, target: Path) -> Drafter:
    return make_drafter("dflash", DrafterOptions(model=str(directory), target=str(target), **OPTIONS))


def test_states_are_read_after_the_layers_that_are_named(target: Path, tmp_path: Path) -> None:
    drafter = drafter_of(save_flat(tmp_path / "draft", True), target)
    assert drafter.description.feature_layers == (1, 2)
    runner, model = runner_of(tiny_transformers("qwen3")), tiny_transformers("qwen3")
    with torch.no_grad():
        theirs = model(torch.tensor([CONTEXT]), output_hidden_states=True).hidden_states
    _, (ours,) = runner.forward_with_features([Segment(runner.open(), CONTEXT)], (1, 2))
    for place, layer in enumerate(sorted(IDS)):
        torch.testing.assert_close(ours[:, place].float(), theirs[layer + 1][0], atol=1e-3, rtol=2**-7)


def test_the_usual_layers_are_spread_evenly(target: Path, tmp_path: Path) -> None:
    assert default_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert default_layer_ids(28, 1) == [14]
    source: Any = load_draft(save_flat(tmp_path / "draft", True, inner={"target_layer_ids": None}), target)
    assert source.weights.layers == (2, 1)


def test_a_flat_checkpoint_drafts_for_the_model_that_is_served(draft: Path, target: Path) -> None:
    assert method_of(draft) == "dflash"
    group = draft_group(str(target), str(draft))
    assert group == {"drafter": "ngram+dflash", "model": str(draft)}
    options = {"model": str(target), "dtype": "float32"}
    assert (
        load_drafters("draft", group | {"kv-tokens": "256"}, options)["dflash"].description.vocab_size == 97
    )
    with pytest.raises(SettingError, match="target = '':"):
        make_drafter("dflash", DrafterOptions(model=str(draft)))
    with pytest.raises(SettingError, match="'dflash'"):
        make_drafter("dspark", DrafterOptions(model=str(draft), target=str(target)))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"inner": {"crystal": 1}}, "dflash_config.crystal = 1:"),
    ({"inner": {"causal_head": 1}}, "dflash_config.causal_head = 1:"),
    (
        {"inner": {"mask_token_id": None}},
        "dflash_config.mask_token_id = None:",
    ),
    ({"inner": {"mask_token_id": 97}}, "dflash_config.mask_token_id = 97:"),
    ({"inner": {"target_hidden_size": 64}}, "dflash_config.target_hidden_size = 64:"),
    ({"inner": {"target_layer_ids": [0, 2]}}, r"target_layer_ids = \[0, 2\]:"),
    ({"inner": {"target_layer_ids": [0, 0]}}, r"target_layer_ids = \[0, 0\]:"),
    ({"inner": {"target_layer_ids": [0, True]}}, "target_layer_ids = "),
    ({"inner": {"target_layer_ids": []}}, "target_layer_ids = "),
    ({"inner": {"target_layer_ids": [1]}}, r"fc.weight has shape \[32, 64\]: config.json implies \[32, 32\]"),
    ({"dflash_config": 3}, "dflash_config = 3:"),
    ({"dflash_config": None}, "dflash_config.mask_token_id = None: "),
    ({"num_target_layers": 4}, "num_target_layers = 4:"),
    ({"block_size": 1}, "block_size = 1: "),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000:"),
    ({"num_hidden_layers": 0}, "num_hidden_layers = 0:"),
    ({"block_size": 10**9}, "block_size = 1000000000:"),
    ({"hidden_size": 64}, "^[^ ]* hidden_size = 64: .* has 32"),
    ({"vocab_size": 96}, "^[^ ]* vocab_size = 96: .* has 97"),
    ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "have the tensor layers.1."),
    ({"attention_bias": True}, "weights lack layers.0.self_attn.k_proj.bias"),
    ({"gate": True}, "^[^ ]* gate = True: unknown field"),
    ({"model_type": "llama"}, "model_type = 'llama':"),
    ({"architectures": ["DFlash2DraftModel"]}, "architectures = "),
    (
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 6},
        r"^[^ ]* layer_types = \['full_attention', 'sliding_attention'\]: windows are not supported",
    ),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_unsupported_fields_are_refused_by_name(
    fields: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    directory = save_flat(tmp_path / "draft", True, **fields)
    assert method_of(directory) == "dflash"
    with pytest.raises(IncompatibleError, match=reason) as refused:
        drafter_of(directory, target)
    assert str(refused.value).startswith(f"{directory}: ")


def test_a_field_or_tensor_that_is_missing_is_named(target: Path, tmp_path: Path) -> None:
    directory = save_flat(tmp_path / "draft", True)
    file, config = directory / "model.safetensors", json.loads((directory / "config.json").read_text())
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": torch.ones(97, 32)}, file)
    with pytest.raises(IncompatibleError, match=r"lm_head\.weight"):
        drafter_of(directory, target)
    save_file({name: t for name, t in tensors.items() if name != "hidden_norm.weight"}, file)
    with pytest.raises(IncompatibleError, match=r"hidden_norm\.weight"):
        drafter_of(directory, target)
    del config["num_target_layers"]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(IncompatibleError, match="num_target_layers"):
        drafter_of(directory, target)
