"""`python -m build`, and its wheel in an empty environment without a compiler.

A fake compiler copies this machine's kernels, since compiling for four instruction sets takes minutes
(`SPECINFER_TEST_THOROUGH=1` compiles them). Only the wheel is installed in the environment. A `.pth` file adds the
third-party packages of the running interpreter, so nothing is downloaded. `.pth` files within that folder, such as an
editable installation of this project, have no effect.
"""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns

import pytest

from specinfer.drafters.pools import TRAINED
from specinfer.errors import UnavailableError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.native.build import PREBUILT, VARIANTS, load_library, variant_path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
NO_COMPILER = {**ALONE, "CXX": "/no/such/compiler"}
NO_SOURCES = ignore_patterns("__pycache__", "*.pyc", PREBUILT.name)
KERNELS = {variant_path(PREBUILT, variant).relative_to(ROOT).as_posix() for variant in VARIANTS}
COPIES = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
cp "$LIBRARY" "$2"
"""
"""Script of a fake compiler, which copies a library to its output."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def compiler(folder: Path) -> dict[str, str]:
    """Return the environment variables that select the compiler of the wheel's kernels."""
    if os.environ.get("SPECINFER_TEST_THOROUGH") == "1":
        return {}
    script, library = folder / "compiler", folder / "library"
    script.write_text(COPIES)
    script.chmod(0o755)
    try:
        copy2(load_library()._name, library)
    except UnavailableError:  # of this machine: the tests of kernels are skipped
        library.write_bytes(b"")
    return {"CXX": str(script), "LIBRARY": str(library)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built like a user builds it: from a copy of the tree, through the source distribution."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        copy2(ROOT / name, source / name)
    for package in PACKAGES:
        copytree(ROOT / package, source / package, ignore=NO_SOURCES)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    variables = os.environ | compiler(tmp_path_factory.mktemp("compiler"))
    done = subprocess.run(build, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which only the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, env=ALONE)
    site = run(
        folder, "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).stdout.strip()
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "lent.pth").write_text("\n".join(lent) + "\n")
    return folder


def run(environment: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the environment outside the project's tree."""
    command = [str(environment / "bin" / program), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=environment, env=NO_COMPILER, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_wheel_holds_every_file_of_its_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "__pycache__" not in path.parts and path.suffix != ".pyc" and PREBUILT not in path.parents
    }
    assert {path for path in wanted if path.endswith((".cpp", ".h", ".safetensors", ".toml"))}
    assert wanted - names == set()
    assert {name for name in names if ".dist-info/" not in name} == wanted | kernels()


def kernels() -> set[str]:
    """Return the names of the wheel's kernels: of all four instruction sets, or none if kernels cannot run here."""
    return KERNELS if platform.machine() == "x86_64" else set()


def test_the_wheel_has_kernels_of_four_instruction_sets_for_any_python(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if name.endswith(".so")} == kernels()
    assert len(KERNELS) == 4
    if kernels():
        assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


def test_the_command_and_the_registry(environment: Path) -> None:
    assert run(environment, "specinfer", "--version").stdout.strip() == PROJECT["project"]["version"]
    assert "smollm2-135m" in run(environment, "specinfer", "models", "list").stdout


@pytest.mark.parametrize("name", sorted(TRAINED.values()))
def test_the_shipped_speculators_lie_in_the_environment(environment: Path, name: str) -> None:
    code = f"from specinfer.hub import resolve_model; print(resolve_model({name!r}))"
    directory = Path(run(environment, "python", "-c", code).stdout.strip())
    assert directory.is_relative_to(environment)
    assert (directory / "model.safetensors").is_file()


@pytest.mark.native
def test_the_kernels_of_the_wheel_run_where_no_compiler_is(environment: Path) -> None:
    code = "from specinfer.model.native import build; print(build.load_library()._name)"
    path = Path(run(environment, "python", "-c", code).stdout.strip())
    assert path.is_relative_to(environment)
    assert path.name in {Path(name).name for name in KERNELS}


@pytest.mark.native
@pytest.mark.usefixtures("default_model")
def test_a_prompt_is_answered_where_no_compiler_is(environment: Path) -> None:
    """Only the compiled kernels can multiply these weights."""
    flags = ["--local", "--model", DEFAULT_MODEL, "--weights", "q8_0", "--max-new-tokens", "8", "--json"]
    assert "token_ids" in run(environment, "specinfer", "generate", "Once upon a time", *flags).stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("default_model")
def test_services_run_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"turns": ["Count from one to ten."]}\n')
    arguments = ["bench", "--prompts", str(tmp_path / "prompts.jsonl"), "--max-new-tokens", "16"]
    run(environment, "specinfer", *arguments, "--json", str(tmp_path / "bench.json"))
    runs = json.loads((tmp_path / "bench.json").read_text())["runs"]
    assert [run["new_tokens"] for run in runs] == [16, 16, 16]


@pytest.mark.thorough
@pytest.mark.usefixtures("default_model")
def test_the_library_runs_from_the_wheel(environment: Path) -> None:
    code = """
from specinfer import LLM, SamplingParams
with LLM("smollm2-135m", adaptive=False) as llm:
    out = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=16))
did = out[0].metrics.speculative_decoding
print(len(out[0].outputs[0].token_ids), out[0].outputs[0].finish_reason, did.drafted > 0)
"""
    assert run(environment, "python", "-c", code).stdout.split()[-3:] == ["16", "length", "True"]
