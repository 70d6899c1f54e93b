"""`specinfer models check`: right, or one line that says why not."""

from pathlib import Path

from typer.testing import CliRunner

from specinfer.cli.models import models_app
from specinfer.errors import IncompatibleError
from tests.support.families import save_random


def test_a_right_model_is_shown_with_its_distances(tmp_path: Path) -> None:
    save_random("gemma2", tmp_path)
    found = CliRunner().invoke(models_app, ["check", str(tmp_path)])
    assert found.exit_code == 0, found.output
    *ways, verdict = found.stdout.splitlines()
    assert [line.split("\t")[0] for line in ways] == [
        "whole",
        "token by token",
        "in two chunks",
        "beside another request",
        "as a tree",
        "far from zero",
    ]
    assert verdict.startswith("right: generic executor")


def test_a_model_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    save_random("jamba", tmp_path)
    found = CliRunner().invoke(models_app, ["check", str(tmp_path)])
    assert isinstance(found.exception, IncompatibleError)
    assert "JambaMambaMixer" in str(found.exception)
