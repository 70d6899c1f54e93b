"""Shape of the code: a class name stands for one thing, a folder is seen at one look, the gateway stays small."""

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = (
    "specinfer",
    "gateway",
    "verifier_svc",
    "speculator_svc",
    "http_svc",
    "all_in_one",
    "models",
    "deploy",
    "benchmarks",
)
GENERATED = ROOT / "specinfer" / "v1"
MAX_FILES_IN_A_FOLDER = 15
"""Beside `__init__.py`; drafters are one method per file, however many methods there are."""
MAX_GATEWAY_FILES = 57


def python_files(*folders: str) -> list[Path]:
    """Files that git knows of, or would know of if all were added; none that are deleted."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    files = {ROOT / name for name in listed if name.endswith(".py")}
    return sorted(path for path in files if path.exists() and GENERATED not in path.parents)


def class_names(path: Path) -> Iterator[str]:
    """Names of all classes of a file, nested ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name


def test_a_class_name_stands_for_one_thing() -> None:
    places = defaultdict[str, list[str]](list)
    for path in python_files(*PRODUCT):
        for name in class_names(path):
            places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500, "the product's classes are found"
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", [*PRODUCT, "tests"])
def test_a_folder_is_seen_at_one_look(package: str) -> None:
    folders = defaultdict[str, int](int)
    for path in python_files(package):
        if path.name != "__init__.py":
            folders[str(path.parent.relative_to(ROOT))] += 1
    folders.pop("specinfer/drafters", None)
    assert {folder: count for folder, count in folders.items() if count > MAX_FILES_IN_A_FOLDER} == {}


def test_the_gateway_stays_small() -> None:
    files = python_files("gateway")
    assert ROOT / "gateway" / "app.py" in files
    assert len(files) <= MAX_GATEWAY_FILES, "what decides about tokens belongs to the library"
