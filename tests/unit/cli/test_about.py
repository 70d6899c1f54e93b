"""Reports name the command that made them, without paths of the machine."""

import sys
from pathlib import Path

import pytest

from specinfer.cli.about import about_this_run


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("/somewhere/else/eval.jsonl", "eval.jsonl"),
        ("../shared/data/eval.jsonl", "eval.jsonl"),
        ("--prompts=/somewhere/else/eval.jsonl", "--prompts=eval.jsonl"),
        ("tests/data/prompts.jsonl", "tests/data/prompts.jsonl"),
        ("--part", "--part"),
        ("0.8/4", "0.8/4"),
        ("ssm,model=models/own", "ssm,model=models/own"),
    ],
)
def test_paths_of_a_machine_are_left_out(argument: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/anywhere/rules.py", "--turns", argument])
    assert about_this_run()["command"] == f"rules.py --turns {shown}"
    assert (
        about_this_run("python -m benchmarks step")["command"] == f"python -m benchmarks step --turns {shown}"
    )


def test_no_report_has_a_path_of_a_machine() -> None:
    results = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
    for report in (*results.glob("*.json"), *results.glob("*.md")):
        words = report.read_text().replace("=", " ").replace('"', " ").replace("`", " ").split()
        outside = [word for word in words if word.startswith(("/work/", "/tmp/", "/root/", "/home/"))]
        assert not outside, (report.name, outside)
