"""The trained speculators in the repository: their size, their model cards, and their names in the registry."""

from pathlib import Path

import pytest

from specinfer.drafters.pools import TRAINED
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.hub.registry import known_models
from specinfer.model.weights.draft_checkpoint import verifier_of
from specinfer.model.weights.source import algorithm_of, is_draft_checkpoint

MODELS = Path(__file__).resolve().parents[3] / "models"
SHIPPED = sorted(path.parent for path in MODELS.glob("*/config.json"))
MAX_BYTES = 25_000_000
KINDS = {DEFAULT_MODEL: "ssm", "qwen2.5-coder-1.5b": "eagle3"}


@pytest.mark.parametrize("directory", SHIPPED, ids=lambda path: path.name)
def test_each_is_small(directory: Path) -> None:
    assert sum(path.stat().st_size for path in directory.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_a_name_of_former_weights_states_how_to_make_such(method: str) -> None:
    with pytest.raises(SettingError, match=f"specinfer train {method}"):
        resolve_model(f"{method}-smollm2-135m")


def test_all_are_known_by_their_target() -> None:
    assert sorted(TRAINED.values()) == [path.name for path in SHIPPED]


@pytest.mark.parametrize("directory", SHIPPED, ids=lambda path: path.name)
def test_each_is_a_checkpoint_for_its_target_with_a_card(directory: Path) -> None:
    assert is_draft_checkpoint(directory)
    target = verifier_of(directory)
    assert TRAINED[target] == directory.name
    assert algorithm_of(directory) == KINDS[target]
    card = (directory / "README.md").read_text()
    assert card.startswith(f"# {directory.name}\n")
    assert "held-out" in card
    assert f"{known_models()[target].licence}, as its target" in " ".join(card.split())
