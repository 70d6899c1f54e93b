"""`--weights auto` of a verifier."""

from pathlib import Path

import pytest

from specinfer.errors import UnavailableError
from specinfer.model.held_weights import held_weights
from specinfer.model.native import model as native_model
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.source import KEPT_GGUF
from tests.support.tiny_models import tiny_transformers

AUTO = RunnerOptions(weights="auto")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that came as a GGUF file, on a machine with compiled kernels."""
    monkeypatch.setattr(native_model, "check_supported", lambda *_: None)
    tiny_transformers("llama").save_pretrained(tmp_path)
    (tmp_path / KEPT_GGUF).touch()
    return tmp_path


def test_the_blocks_of_a_file_are_kept(model: Path) -> None:
    assert held_weights(model, AUTO, shared=False) == "native-a8"


@pytest.mark.parametrize(
    "options",
    [
        RunnerOptions(weights="auto", dtype="float32"),
        RunnerOptions(weights="auto", executor="torch"),
        RunnerOptions(weights="auto", executor="device"),
    ],
)
def test_what_cannot_hold_blocks_converts(model: Path, options: RunnerOptions) -> None:
    assert held_weights(model, options, shared=False) == "converted"


def test_ranks_that_share_a_model_convert(model: Path) -> None:
    assert held_weights(model, AUTO, shared=True) == "converted"


def test_a_model_without_a_file_of_blocks_is_converted(model: Path) -> None:
    (model / KEPT_GGUF).unlink()
    assert held_weights(model, AUTO, shared=False) == "converted"


def test_without_kernels_the_model_is_converted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise UnavailableError("no AVX2")

    monkeypatch.setattr(native_model, "check_supported", unsupported)
    assert held_weights(model, AUTO, shared=False) == "converted"


@pytest.mark.parametrize("weights", ["converted", "native", "int8"])
def test_what_is_asked_for_stays(model: Path, weights: str) -> None:
    assert held_weights(model, RunnerOptions(weights=weights), shared=False) == weights
