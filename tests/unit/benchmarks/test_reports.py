"""Every report has the script that writes it; what has none is a row of benchmarks/tried.md."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
REPORTS = sorted(RESULTS.glob("*.md"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_a_report_names_a_script_that_exists(report: Path) -> None:
    modules = re.findall(r"`python -m (benchmarks[ .][\w.]+)", report.read_text())
    assert modules
    for module in modules:
        assert find_spec(module.replace(" ", ".")), module


def test_every_picture_is_in_a_report() -> None:
    shown = {name for report in REPORTS for name in re.findall(r"\(([\w-]+\.png)\)", report.read_text())}
    assert shown == {path.name for path in RESULTS.glob("*.png")}
