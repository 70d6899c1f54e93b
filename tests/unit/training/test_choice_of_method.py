"""`specinfer train speculator` chooses a method by the size and the layers of the target."""

import json
from pathlib import Path

import pytest

from specinfer.model.weights.config_files import load_config
from specinfer.training.speculator_method import SpeculatorMethod, choose_method, parameters
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import tiny_transformers


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize(
    ("family", "shape", "method"),
    [
        ("llama", {}, SpeculatorMethod.SSM),
        ("gpt_neox", {}, SpeculatorMethod.SSM),
        ("gemma2", {}, SpeculatorMethod.EAGLE),
        ("qwen3_moe", {}, SpeculatorMethod.BLOCKWISE),
        (
            "llama",
            {"vocab_size": 40_000, "hidden_size": 4096, "head_dim": 1024, "num_hidden_layers": 12},
            SpeculatorMethod.EAGLE,
        ),
        (
            "gpt_neox",
            {"vocab_size": 40_000, "head_dim": 1024, "num_hidden_layers": 12},
            SpeculatorMethod.BLOCKWISE,
        ),
    ],
)
def test_size_and_layers_of_the_target_choose_the_method(
    family: str, shape: dict[str, int], method: SpeculatorMethod, tmp_path: Path
) -> None:
    tiny_transformers(family).config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    widths = {"intermediate_size": 4 * 4096} if shape else {}
    sizes = shape | widths | ({"hidden_size": 4096} if shape else {})
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    assert choose_method(load_config(tmp_path)).method is method


def test_parameters_are_counted(target: Path) -> None:
    model = tiny_transformers("llama")
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert parameters(load_config(target)) == matrices
