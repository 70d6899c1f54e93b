"""An installation without extras runs the gateway and the command line, without torch.

The tests hide all modules that the base dependencies in pyproject.toml do not install.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDE = """
import contextlib, importlib.abc, io, json, runpy, sys
HIDDEN, COMMANDS = frozenset(json.loads(sys.argv[1])), json.loads(sys.argv[2])
class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hider())
results = []
for command in COMMANDS:
    sys.argv, code, out, err = command, 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except ModuleNotFoundError as error:
            code = repr(error)
    results.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""
"""Script that runs commands in one interpreter, in which hidden modules cannot be imported."""


Results = dict[str, tuple[int | str, str, str]]


def canonical(requirement: str) -> str:
    """Return the normalized distribution name of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def base_distributions() -> set[str]:
    """Return the distributions that `pip install specinfer` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names: set[str] = set()
    waiting = [canonical(text) for text in project["dependencies"]] + ["hiredis"]  # of redis[hiredis]
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # only needed on other platforms or versions of Python
            continue
        waiting += [canonical(text) for text in needed if "extra ==" not in text]
    return names


def hidden_modules() -> list[str]:
    """Return the top-level modules of all other distributions."""
    allowed = base_distributions()
    ours = {"specinfer", "gateway", "verifier_svc", "speculator_svc", "http_svc", "models"}
    modules = packages_distributions()
    return sorted(
        module
        for module, names in modules.items()
        if module not in ours and not allowed & {canonical(name) for name in names}
    )


@pytest.fixture(scope="module")
def no_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with the first bytes of a GGUF file only."""
    gguf = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf.write_bytes(b"GGUF")
    return gguf


@pytest.fixture(scope="module")
def results(no_model: Path) -> Results:
    """Exit code, output and errors of all commands of this module."""
    commands = [
        *(command for command, _ in COMMANDS),
        *(NEEDS_A_MODEL, NOBODY_LISTENS, [*PULL, str(no_model)]),
    ]
    hidden, requested = json.dumps(hidden_modules()), json.dumps(commands)
    done = subprocess.run(
        [sys.executable, "-c", HIDE, hidden, requested], capture_output=True, text=True, cwd=ROOT, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return {
        " ".join(command): tuple(modules)
        for command, modules in zip(commands, json.loads(done.stdout), strict=True)
    }


COMMANDS = [
    (["gateway", "--help"], "--verifier"),
    (["speculator_svc", "--help"], "--drafter"),
    (["specinfer.cli", "--help"], "generate"),
    (["specinfer.cli", "models", "list"], "smollm2-135m"),
    (["specinfer.cli", "bench", "--help"], "--prompts"),
    (["specinfer.cli", "demo", "--help"], "--max-new-tokens"),
    (["specinfer.cli", "attach", "--help"], "--from-token"),
]
NEEDS_A_MODEL = ["verifier_svc", "--help"]
NOBODY_LISTENS = ["specinfer.cli", "status", "--address", "127.0.0.1:9"]
"""Command with a port on which nothing listens."""
PULL = ["specinfer.cli", "models", "pull"]


def test_torch_is_hidden(results: Results) -> None:
    """Negative control: commands that need a model fail."""
    assert {"torch", "transformers", "gguf", "safetensors"} <= set(hidden_modules())
    code, _, _ = results[" ".join(NEEDS_A_MODEL)]
    assert re.search("No module named '(torch|safetensors)'", str(code))


@pytest.mark.parametrize(
    ("command", "word"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_runs_without_the_model_extra(command: list[str], word: str, results: Results) -> None:
    code, printed, errors = results[" ".join(command)]
    assert code == 0, errors
    assert word in printed


def test_a_client_runs_without_the_model_extra(results: Results) -> None:
    """It fails only at the connection."""
    code, _, errors = results[" ".join(NOBODY_LISTENS)]
    assert code == 1
    assert errors.startswith("specinfer: error: no gateway at 127.0.0.1:9: start one with")


def test_the_python_client_loads_no_more_than_it_needs() -> None:
    """It does not import numpy, rich, typer or torch."""
    code = (
        "import sys, specinfer.client; print(sorted({'numpy', 'rich', 'typer', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_conversion_names_the_missing_extra(no_model: Path, results: Results) -> None:
    code, _, errors = results[" ".join([*PULL, str(no_model)])]
    assert code == 1
    assert errors.strip().splitlines()[-1].endswith("pip install '.[model]'"), errors
