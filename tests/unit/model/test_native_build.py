"""Without compiler or processor the native executor says why, and `auto` goes on with torch."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specinfer.errors import SettingError, UnavailableError
from specinfer.model.executors.executor import TorchExecutor
from specinfer.model.native import build
from specinfer.model.native.build import load_library
from specinfer.model.sampling.distributions import probabilities
from specinfer.processor import processor_flags
from specinfer.sampling import SamplingParams
from tests.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama", head_dim=16)


@pytest.fixture(autouse=True)
def fresh_library() -> object:
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "processor_flags", lambda: frozenset(build._NEEDED))
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(UnavailableError, match="/no/such/compiler"):
        load_library()
    with pytest.raises(SettingError, match=r"executor = 'native': native kernels: .*/no/such/compiler"):
        runner_of(MODEL, executor="native")


def test_an_old_processor_is_named_and_auto_falls_back_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "processor_flags", lambda: frozenset({"sse2"}))
    with caplog.at_level(logging.WARNING):
        runner = runner_of(MODEL, executor="auto")
    assert isinstance(runner._executor, TorchExecutor)
    assert "the processor lacks avx2, f16c, fma" in caplog.text
    assert "using the torch executor" in caplog.text


@pytest.mark.native
@pytest.mark.parametrize("without", ["avx512f", "avx512_bf16"])
def test_the_kernels_for_lesser_processors_pass_the_same_tests(without: str) -> None:
    if without not in processor_flags():
        pytest.skip("the kernels are those anyway")
    names = ("native", "block_float", "native_growth", "distributions", "weights", "window")
    files = [f"test_{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=Path(__file__).parent,
        env=os.environ | {"CXXFLAGS": f"-mno-{without.replace('_', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_options_for_the_compiler_make_a_library_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = build._library_path("c++")
    monkeypatch.setenv("CXXFLAGS", "-mno-avx512f")
    assert build._library_path("c++") != usual


def test_unsupported_models_are_named() -> None:
    with pytest.raises(SettingError, match="head_dim = 8: must be a multiple of 16"):
        runner_of(tiny_transformers("llama"), executor="native")


def test_a_process_that_runs_without_kernels_does_not_load_them_to_draw_a_token() -> None:
    """Compiling takes seconds; a first request is not the place for it."""
    assert build.loaded_library() is None
    probabilities(torch.zeros(5), SamplingParams(temperature=0.8))
    assert build.loaded_library() is None
