"""The import contracts in pyproject.toml hold, and no modules import each other in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specinfer", "gateway", "verifier_svc", "speculator_svc", "http_svc", "all_in_one")


def test_the_contracts_hold() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "0 broken" in run.stdout


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions count, and those for type checkers, too."""
    files = {name_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    graph = {name: imported(path) & files.keys() - {name} for name, path in files.items()}
    assert sum(map(len, graph.values())) > 1000, "imports are found"
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Return the names that a file imports, as modules and as members of modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
