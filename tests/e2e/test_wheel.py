"""`python -m build`, and what its wheel brings to an empty environment.

The environment gets the wheel alone; the running interpreter lends third parties through a `.pth` file, so
nothing is downloaded. `.pth` files in the lent folder (an editable installation of this project among them)
have no effect there.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns

import pytest

from specinfer.drafters.pools import TRAINED
from specinfer.hub import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
NO_SOURCES = ignore_patterns("__pycache__", "*.pyc")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a user builds it, by way of the source distribution, from a copy of the tree."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy2(ROOT / name, source / name)
    for package in PACKAGES:
        copytree(ROOT / package, source / package, ignore=NO_SOURCES)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but the wheel."""
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
    """A program of the environment, started far from the project's tree."""
    command = [str(environment / "bin" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=environment, env=ALONE, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_wheel_holds_every_file_of_its_packages(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert {path for path in wanted if path.endswith((".cpp", ".h", ".safetensors", ".toml"))}
    assert wanted - held == set()
    assert {name for name in held if ".dist-info/" not in name} == wanted


def test_the_command_and_the_registry(environment: Path) -> None:
    assert run(environment, "specinfer", "--version").stdout.strip() == PROJECT["project"]["version"]
    assert "smollm2-135m" in run(environment, "specinfer", "models", "list").stdout


@pytest.mark.parametrize("name", sorted(TRAINED[DEFAULT_MODEL].values()))
def test_the_shipped_speculators_lie_in_the_environment(environment: Path, name: str) -> None:
    code = f"from specinfer.hub import resolve_model; print(resolve_model({name!r}))"
    found = Path(run(environment, "python", "-c", code).stdout.strip())
    assert found.is_relative_to(environment)
    assert (found / "model.safetensors").is_file()


@pytest.mark.native
def test_the_kernels_are_built_from_the_installed_sources(environment: Path) -> None:
    code = "from specinfer.model.native import build; build.load_library(); print(build.__file__)"
    assert Path(run(environment, "python", "-c", code).stdout.strip()).is_relative_to(environment)


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
