"""Docstrings and comments are plain English."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.plain_english import OPENING, cpp_faults, docstrings, python_faults

ROOT = Path(__file__).resolve().parents[2]
COVERED = (
    "specinfer",
    "gateway",
    "verifier_svc",
    "speculator_svc",
    "http_svc",
    "all_in_one",
    "proto/generate.py",
    "benchmarks",
    "deploy",
    "models",
    "examples",
)
CHECKS = {".py": python_faults, ".cpp": cpp_faults, ".h": cpp_faults}


def test_no_file_breaks_the_rules() -> None:
    faults = [fault for name in covered_files() for fault in faults_of(name)]
    assert not faults, "\n".join(["Rewrite these lines in plain English:", *faults])


def test_openings_of_tests_are_plain() -> None:
    """Docstrings of tests may be long, but must not begin with a forbidden opening."""
    faults = [
        f"{path.relative_to(ROOT)}:{line}: begins with {opening[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, text in docstrings(path.read_text())
        if (opening := OPENING.match(text))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('class A:\n    x: int\n    """Of the tree."""', "begins with Of"),
        ('def f():\n    """See `g`."""', "begins with See"),
        ('"""' + "word " * 17 + '."""', "17 words in the first line"),
        ('"""' + "abcdefghij" * 9 + '.."""', "92 characters in the first line"),
        (
            'def f():\n    """Return what it is that counts."""',
            "several subordinate words in the first line: what, that",
        ),
        ('x = 1\n"""Tokens behind the context."""', '"behind" (use: after)'),
        ('x = 1\n"""Most tokens of a request."""', '"Most" (use: maximum, minimum)'),
        ('"""Count.\n\nIt goes on.\n"""', '"goes on" (use: continue)'),
        ("x = 1  # blocks are held", '"held" (use: cached, stored)'),
    ],
)
def test_faults_of_python_are_found(source: str, fault: str) -> None:
    assert [actual for _, actual in python_faults(source)] == [fault]


@pytest.mark.parametrize(
    "source",
    [
        '"""Return `what` is `behind` the node that `holds` it."""',
        '"""Score held-out prompts, at most 12 at once."""',
        '"""First line.\n\n' + "word " * 20 + '."""',
        'x = "behind"',
        'def tells():\n    """Return what `tells` returns."""\n    return "told"',
    ],
)
def test_code_and_later_lines_are_free(source: str) -> None:
    assert not list(python_faults(source))


def test_faults_of_cpp_are_found() -> None:
    source = 'f("behind");  // fine\n/* one\n   two */ int x;  // rows beside it\n'
    assert list(cpp_faults(source)) == [(3, '"beside" (use: next to, in addition to)')]


def covered_files() -> Iterator[str]:
    """Yield the Python and C++ files of the covered folders, tracked or new."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *COVERED]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        generated = name.startswith("specinfer/v1/")
        if Path(name).suffix in CHECKS and not generated and (ROOT / name).exists():
            yield name


def faults_of(name: str) -> Iterator[str]:
    for line, fault in CHECKS[Path(name).suffix]((ROOT / name).read_text()):
        yield f"{name}:{line}: {fault}"
