"""The directory of models and compiled kernels."""

from pathlib import Path

import pytest

from specinfer.hub.resolve import model_directory
from specinfer.model.native.build import _library_path
from specinfer.system.cache_directory import cache_directory


@pytest.mark.parametrize(
    ("specinfer", "xdg", "expected"),
    [
        ("/models", "/xdg", "/models"),
        ("~/models", "", "/home/ann/models"),
        ("", "/xdg", "/xdg/specinfer"),
        ("", "not/absolute", "/home/ann/.cache/specinfer"),
        ("", "", "/home/ann/.cache/specinfer"),
    ],
)
def test_models_and_kernels_are_in_the_directory_set_by_the_environment(
    specinfer: str, xdg: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SPECINFER_CACHE": specinfer, "XDG_CACHE_HOME": xdg, "HOME": "/home/ann"}.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(expected)
    assert model_directory("a/b") == Path(expected, "models", "a--b")
    assert _library_path("g++").parent == Path(expected, "native")
