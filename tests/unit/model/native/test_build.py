"""Prebuilt libraries are chosen by the processor's instructions.

Without library, compiler or a suitable processor the native executor gives the reason, and `auto` uses torch.
"""

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.native import build
from specinfer.model.native.build import (
    VARIANTS,
    Variant,
    build_variants,
    choose_prebuilt,
    fitting,
    load_library,
    variant_path,
)
from specinfer.model.native.model import check_supported
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.torch.executor import TorchExecutor
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import Sampling
from specinfer.system.cache_directory import cache_directory
from specinfer.system.machine import processor_flags
from tests.support.tiny_models import runner_of, tiny_transformers

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
    with pytest.raises(SettingError, match="executor = 'native':"):
        runner_of(MODEL, executor="native")


def test_an_old_processor_is_named_and_auto_uses_torch_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "processor_flags", lambda: frozenset({"sse2"}))
    with caplog.at_level(logging.WARNING):
        runner = runner_of(MODEL, executor="auto")
    assert isinstance(runner._executor, TorchExecutor)
    assert "the processor lacks avx2, f16c, fma" in caplog.text
    assert "using the torch executor" in caplog.text


BY_NAME = {variant.name: variant for variant in VARIANTS}
XEON_2023 = frozenset().union(*(variant.flags for variant in VARIANTS)) | {"avx512_fp16", "sse2"}


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        (set(), ["avx512bf16", "avx512vnni", "avx512", "avx2"]),
        ({"avx512_bf16"}, ["avx512vnni", "avx512", "avx2"]),
        ({"avx512_bf16", "avx512_vnni"}, ["avx512", "avx2"]),
        ({"avx512_vnni"}, ["avx512", "avx2"]),
        ({"avx512bw"}, ["avx2"]),
        ({"avx512vl"}, ["avx2"]),
        ({"f16c"}, []),
        (XEON_2023, []),
    ],
)
def test_a_processor_runs_the_variants_whose_instructions_it_has(missing: set[str], names: list[str]) -> None:
    assert [variant.name for variant in fitting(XEON_2023 - missing)] == names


def test_the_best_library_of_these_sources_is_chosen(tmp_path: Path) -> None:
    assert choose_prebuilt(tmp_path, XEON_2023) is None
    (tmp_path / "kernels-avx512bf16-0123456789abcdef.so").touch()  # of another version
    assert choose_prebuilt(tmp_path, XEON_2023) is None
    for name in ("avx2", "avx512"):
        variant_path(tmp_path, BY_NAME[name]).touch()
    assert choose_prebuilt(tmp_path, XEON_2023) == variant_path(tmp_path, BY_NAME["avx512"])
    assert choose_prebuilt(tmp_path, BY_NAME["avx2"].flags) == variant_path(tmp_path, BY_NAME["avx2"])
    assert choose_prebuilt(tmp_path, {"sse2"}) is None


@pytest.mark.native
def test_a_library_built_ahead_of_time_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Path(load_library()._name)
    best = variant_path(tmp_path, fitting(processor_flags())[0])
    shutil.copy(ours, best)
    load_library.cache_clear()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("SPECINFER_KERNELS", str(tmp_path))
    assert Path(load_library()._name) == best


@pytest.mark.native
def test_without_a_fitting_library_a_warning_is_logged_and_the_compiler_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("SPECINFER_KERNELS", str(tmp_path))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(UnavailableError, match="/no/such/compiler"),
    ):
        load_library()
    assert f"{tmp_path} has no native kernels for this processor and version" in caplog.text


def test_variants_are_compiled_once_each_with_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit\necho "$*" >> {log}\n'
        'while [ "$1" != -o ]; do shift; done; touch "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    paths = build_variants(tmp_path / "kernels")
    assert [path.is_file() for path in paths] == [True] * len(VARIANTS)
    assert build_variants(tmp_path / "kernels") == paths
    lines = log.read_text().splitlines()
    assert len(lines) == len(VARIANTS)
    for variant in VARIANTS:
        assert any(f" {' '.join(variant.options)} " in line for line in lines), variant.name
    assert not any("native" in line.split() or "-march=native" in line for line in lines)


def test_other_machines_get_an_empty_directory_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Images can be built on these machines, without kernels."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert build_variants(tmp_path / "kernels") == []
    assert list((tmp_path / "kernels").iterdir()) == []
    assert "native kernels need x86-64: none are compiled for aarch64" in caplog.text


def test_the_command_prints_an_error_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specinfer.model.native.build", "--all", str(tmp_path)],
        env=os.environ | {"CXX": "/no/such/compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/no/such/compiler" in done.stderr


def shipped(variant: Variant) -> Path:
    """Return a directory with only the library of this variant, which is compiled once per machine."""
    directory = cache_directory() / "native" / "variants" / variant.name
    build_variants(directory, [variant])
    return directory


@pytest.mark.thorough
@pytest.mark.native
@pytest.mark.parametrize("name", ["avx512vnni", "avx2"])
def test_the_kernels_for_older_processors_pass_the_same_tests(name: str) -> None:
    """Test libraries of images that the other tests have not run on this processor."""
    if BY_NAME[name] not in fitting(processor_flags())[1:]:
        pytest.skip("the kernels are those anyway, or this processor does not run them")
    names = ("block_float", "block_products", "growth", "mixtures", "passes", "products", "recurrent")
    files = [f"test_{name}.py" for name in names]
    assert [name for name in files if not (Path(__file__).parent / name).exists()] == []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=Path(__file__).parent,
        env=os.environ | {"SPECINFER_KERNELS": str(shipped(BY_NAME[name]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_compiler_flags_change_the_name_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = build._library_path("c++")
    monkeypatch.setenv("CXXFLAGS", "-mno-avx512f")
    assert build._library_path("c++") != usual


def test_unsupported_models_are_named() -> None:
    with pytest.raises(SettingError, match="head_dim = 8:"):
        runner_of(tiny_transformers("llama"), executor="native")
    odd = replace(from_transformers(tiny_transformers("llama").config), head_dim=16, intermediate_size=65)
    with pytest.raises(IncompatibleError, match="size 65"):
        check_supported(odd, "float32", "cpu")


def test_drawing_a_token_does_not_load_the_kernels() -> None:
    """Compiling takes seconds, which must not delay a first request."""
    assert build.loaded_library() is None
    probabilities(torch.zeros(5), Sampling(temperature=0.8))
    assert build.loaded_library() is None
