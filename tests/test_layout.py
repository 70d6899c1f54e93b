"""Shape of the code: unique class names, few files in a folder, a small gateway."""

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
"""Maximum files next to `__init__.py`; the folder of drafters, with a file per method, is exempt."""
MAX_GATEWAY_FILES = 57
MAX_LINES = {
    "all_in_one": 300,
    "benchmarks": 5_915,
    "deploy": 697,
    "gateway": 7_080,
    "http_svc": 6_150,
    "specinfer": 54_700,
    "specinfer/cli": 3_520,
    "specinfer/client": 1_440,
    "specinfer/drafters": 4_640,
    "specinfer/engine": 1_150,
    "specinfer/hub": 850,
    "specinfer/integrations": 450,
    "specinfer/llm": 1_864,
    "specinfer/model": 17_028,
    "specinfer/openai_api": 400,
    "specinfer/options": 617,
    "specinfer/planning": 2_268,
    "specinfer/remote": 1_952,
    "specinfer/request": 800,
    "specinfer/scheduling": 2_120,
    "specinfer/service": 2_130,
    "specinfer/system": 890,
    "specinfer/text": 3_857,
    "specinfer/training": 4_672,
    "specinfer/tree": 1_128,
    "specinfer/verification": 2_050,
    "specinfer/wire": 250,
    "speculator_svc": 500,
    "tests/integration": 12_016,
    "verifier_svc": 1_290,
}
"""Maximum lines of Python by room. A change that needs more takes them from another room, and says so."""


def python_files(*folders: str) -> list[Path]:
    """Return the Python files that are tracked by git or new, without deleted ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    files = {ROOT / name for name in listed if name.endswith(".py")}
    return sorted(path for path in files if path.exists() and GENERATED not in path.parents)


def class_names(path: Path) -> Iterator[str]:
    """Yield the names of all classes in a file, including nested ones."""
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


def test_rooms_do_not_grow() -> None:
    lines = {
        room: sum(len(path.read_text().splitlines()) for path in python_files(room)) for room in MAX_LINES
    }
    assert {room: count for room, count in lines.items() if count > MAX_LINES[room]} == {}
