"""The kind that a draft checkpoint declares decides how it is read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.checkpoint import load_draft
from specinfer.drafters.heads_layers import BlockwiseSource, MedusaSource, save_heads
from specinfer.drafters.published.eagle3 import EagleSource, save_eagle
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.weights.config_files import from_transformers
from specinfer.training.eagle_student import starting_tensors
from tests.support.tiny_models import tiny_transformers
from tests.unit.model.features.test_heads import random_heads
from tests.unit.model.features.test_markov_head import with_markov


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (checkpoint, target)."""
    directory, model = tmp_path_factory.mktemp("eagle"), tiny_transformers("llama")
    model.save_pretrained(directory / "target")
    ids = torch.arange(40)
    tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 1, ids)
    target = directory / "target"
    save_eagle(directory / "draft", tensors, ids, (3,), target, str(target), {})
    return directory / "draft", target


def test_a_checkpoint_is_read_as_its_declared_kind(eagle: tuple[Path, Path]) -> None:
    draft = load_draft(*eagle)
    assert isinstance(draft, EagleSource)
    assert draft.weights.layers == (3,)


def test_an_unknown_kind_is_named(eagle: tuple[Path, Path]) -> None:
    config = eagle[0] / "config.json"
    before = config.read_text()
    config.write_text(json.dumps(json.loads(before) | {"speculators_model_type": "crystal"}))
    with pytest.raises(IncompatibleError, match="speculators_model_type = "):
        load_draft(*eagle)
    config.write_text(before)


def test_a_drafter_refuses_other_kinds(eagle: tuple[Path, Path]) -> None:
    options = DrafterOptions(model=str(eagle[0]))
    with pytest.raises(SettingError, match="speculators_model_type = 'eagle3'"):
        make_drafter("ssm", options)
    options = DrafterOptions(model=str(eagle[1]))
    with pytest.raises(SettingError, match="speculators_model_type = 'eagle3'"):
        make_drafter("eagle", options)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "blockwise"])
def test_each_tensor_of_another_shape_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    target, draft, ids = tmp_path / "target", tmp_path / "draft", torch.arange(40)
    model = tiny_transformers("qwen2")
    model.save_pretrained(target)
    if kind == "eagle":
        tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 1, ids)
        save_eagle(draft, tensors, ids, (3,), target, str(target), {})
    else:
        heads = with_markov(random_heads(MedusaSource if kind == "medusa" else BlockwiseSource, ids))
        save_heads(draft, heads, target, str(target), {})
    load_draft(draft, target)
    whole = load_file(draft / "model.safetensors")
    for name in whole.keys() - {"d2t", "t2d"}:
        for shorter in (whole[name][:-1], whole[name][..., :-1]):
            save_file(whole | {name: shorter.contiguous()}, draft / "model.safetensors")
            with pytest.raises(IncompatibleError, match=r"draft: \S+ has shape \[.*\]: config.json implies"):
                load_draft(draft, target)
