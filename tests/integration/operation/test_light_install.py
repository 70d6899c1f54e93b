"""An installation without extras runs the gateway and the command line, without torch and transformers.

Everything that the base dependencies of pyproject.toml do not bring is hidden from a fresh interpreter, so a
missing dependency fails here as an import of torch would.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HIDE = """
import importlib.abc, json, runpy, sys
HIDDEN = frozenset(json.loads(sys.argv.pop(1)))
class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hider())
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def canonical(requirement: str) -> str:
    """The name of the distribution that a requirement asks for."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def base_distributions() -> set[str]:
    """Names of what `pip install specinfer` brings, extras of dependencies included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    waiting = [canonical(text) for text in project["dependencies"]] + ["hiredis"]  # of redis[hiredis]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # only needed on other platforms or versions of Python
            continue
        waiting += [canonical(text) for text in needed if "extra ==" not in text]
    return found


def hidden_modules() -> list[str]:
    """Top-level modules of all other distributions."""
    allowed = base_distributions()
    ours = {"specinfer", "gateway", "verifier_svc", "speculator_svc", "http_svc", "models"}
    modules = packages_distributions()
    return sorted(
        module
        for module, names in modules.items()
        if module not in ours and not allowed & {canonical(name) for name in names}
    )


def run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", HIDE, json.dumps(hidden_modules()), module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_torch_is_hidden() -> None:
    """The negative control: what needs a model does not run here."""
    assert {"torch", "transformers", "gguf", "safetensors"} <= set(hidden_modules())
    done = run("verifier_svc", "--help")
    assert done.returncode != 0
    assert "No module named 'torch'" in done.stderr


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["gateway", "--help"], "--verifier"),
        (["speculator_svc", "--help"], "--drafter"),
        (["specinfer.cli", "--help"], "generate"),
        (["specinfer.cli", "models", "list"], "smollm2-135m"),
        (["specinfer.cli", "bench", "--help"], "--prompts"),
        (["specinfer.cli", "demo", "--help"], "--max-new-tokens"),
        (["specinfer.cli", "attach", "--help"], "--from-token"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_runs_without_the_model_extra(command: list[str], word: str) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert word in done.stdout


def test_a_client_runs_without_the_model_extra() -> None:
    """It gets as far as the network: nobody listens on the port of discarded messages."""
    done = run("specinfer.cli", "status", "--address", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("specinfer: error: gateway at 127.0.0.1:9")


def test_the_python_client_loads_no_more_than_it_needs() -> None:
    """Neither what draws terminals nor numbers; torch is hidden anyway."""
    code = (
        "import sys, specinfer.client; print(sorted({'numpy', 'rich', 'typer', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_conversion_names_the_missing_extra(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    done = run("specinfer.cli", "models", "pull", str(gguf))
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("pip install '.[model]'"), done.stderr
