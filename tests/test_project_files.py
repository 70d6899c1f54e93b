"""The files for editors, hooks and hosted CI agree with pyproject.toml and `make`."""

import os
import re
import sysconfig
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from specinfer import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_editors_break_lines_where_ruff_does() -> None:
    (length,) = re.findall(r"^\[\*\.py\]\nmax_line_length = (\d+)$", text(".editorconfig"), re.MULTILINE)
    assert int(length) == PROJECT["tool"]["ruff"]["line-length"]


def test_hosted_ci_runs_what_everybody_runs() -> None:
    workflow = text(".github/workflows/ci.yml")
    assert "- run: .ci/run" in workflow
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert f'python: ["{oldest}", ' in workflow


def test_ci_runs_targets_that_exist() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    targets = re.findall(r"^make ([\w-]+)$", script.read_text(), re.MULTILINE)
    assert {"lint", "types", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", text("Makefile"), re.MULTILINE), target


def test_ci_goes_the_way_to_a_model_of_ones_own() -> None:
    """`make test` does not run this walk."""
    assert "SPECINFER_TEST_THOROUGH=1 .venv/bin/python -m pytest tests/docs/test_own_model.py" in text(
        ".ci/run"
    )


def test_hooks_run_programs_that_make_installs() -> None:
    programs = set(re.findall(r"entry: \.venv/bin/([\w-]+)", text(".pre-commit-config.yaml")))
    assert programs == {"ruff", "mypy"}
    assert programs <= {re.split(r"\W", requirement)[0] for requirement in EXTRAS["dev"]}


def test_make_installs_every_extra() -> None:
    plain, installed = re.findall(r'--editable "\.\[([\w,]+)\]"', text("Makefile"))
    assert plain == "local", "`make demo` installs no tools of developers"
    extras = set(installed.split(","))
    within = [re.findall(r"specinfer\[([\w,]+)\]", " ".join(EXTRAS[extra])) for extra in extras]
    extras |= {name for names in chain(*within) for name in names.split(",")}
    # of `gpu` all but torchao, which transformers loads in each process of the tests if it finds it
    assert set(EXTRAS["gpu"]) - set(EXTRAS["dev"]) == {"specinfer[model]", "torchao>=0.18"}
    assert extras | {"gpu"} == set(EXTRAS)


def test_every_dependency_is_pinned() -> None:
    """`constraints.txt` pins each within the range in pyproject.toml."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = dict(line.split("==") for line in text("constraints.txt").splitlines() if "==" in line)
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    for line in [*PROJECT["project"]["dependencies"], *chain(*EXTRAS.values())]:
        requirement = Requirement(line)
        if requirement.name != PROJECT["project"]["name"]:
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


def text(path: str) -> str:
    """Return the text of a file of the project."""
    return (ROOT / path).read_text()


def test_type_checkers_see_the_installed_library() -> None:
    """Type checkers read the paths in .pth files, which `make` writes, but no import hooks."""
    assert "--config-settings editable_mode=compat --editable" in text("Makefile")
    folder = Path(sysconfig.get_path("purelib"))
    paths = {line for file in folder.glob("*.pth") for line in file.read_text().splitlines()}
    if str(ROOT) not in paths and not any((folder / "specinfer").glob("py.typed")):
        pytest.skip("this checkout is not what is installed")
    assert (ROOT / "specinfer/py.typed").is_file()


def test_all_say_the_same_version() -> None:
    version = PROJECT["project"]["version"]
    assert __version__ == version
    assert re.findall(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE) == [version]
    released = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", text("CHANGELOG.md"), re.MULTILINE)
    assert released[0] == version


MAX_UNRELEASED = 60
"""Maximum lines of the changes since the last release."""


def test_unreleased_changes_are_read_on_one_page() -> None:
    _, unreleased, _ = re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[:3]
    assert unreleased.startswith("Unreleased\n")
    assert len(unreleased.splitlines()) <= MAX_UNRELEASED
