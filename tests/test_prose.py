"""Docstrings have plain openings, and those and comments of product code plain words."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COVERED = (
    "specinfer",
    "gateway",
    "verifier_svc",
    "speculator_svc",
    "http_svc",
    "all_in_one",
    "models",
    "deploy",
)
"""Folders of product code."""
BESIDE = ("tests", "benchmarks", "examples")
"""Folders of which only the openings are checked."""

OPENING = re.compile(r"(What|Whether|Which|Those|That|Whose|Of|How|See)\b")
WORD = re.compile(r"\b(told|tells?|hopes?|wish|wishes)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")


@pytest.mark.parametrize("folder", COVERED)
def test_prose_is_plain(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "v1" not in path.parts]
    assert paths, "no file is covered"
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in paths
        for line, fault in faults_of(path.read_text())
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("folder", BESIDE)
def test_openings_are_plain(folder: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line}: begins with {found[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text()))
        if (found := OPENING.match(text.lstrip()))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""What it does."""', "begins with What"),
        ('class A:\n    """Which of them."""', "begins with Which"),
        ('def f():\n    """See `g`."""', "begins with See"),
        ('class A:\n    x: int\n    """Of the tree."""', "begins with Of"),
        ('def f(x):\n    y = x\n    """How many."""', "begins with How"),
        ('"""Counts.\n\nIt is told the number.\n"""', "says told"),
        ("x = 1  # somebody tells it", "says tells"),
    ],
)
def test_faults_are_found(source: str, fault: str) -> None:
    assert [found for _, found in faults_of(source)] == [fault]


def test_code_and_strings_are_no_prose() -> None:
    assert not list(faults_of('def tells():\n    """Return what `tells` returns."""\n    return "told"'))


def faults_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of everything in a file's prose that is not allowed."""
    for line, text in docstrings(ast.parse(source)):
        if found := OPENING.match(text.lstrip()):
            yield line, f"begins with {found[0]}"
        yield from ((line, f"says {word[0]}") for word in WORD.finditer(CODE.sub("", text)))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found_words = WORD.finditer(CODE.sub("", token.string))
            yield from ((token.start[0], f"says {word[0]}") for word in found_words)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands alone: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
