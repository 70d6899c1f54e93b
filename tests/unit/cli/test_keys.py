"""`specinfer keys`: its output, and the gateway's reading of the file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.api.callers import Callers
from specinfer.cli.models import keys_app
from specinfer.errors import AlreadyExistsError, NotFoundError, UnauthenticatedError


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(keys_app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def name_of(file: Path, key: str) -> str:
    return Callers.load(file).identify([("authorization", f"Bearer {key.strip()}")]).name


def test_a_key_is_created_rotated_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    first = run("create", "--name", "alice", "--max-concurrent", "2", "--file", file)
    assert name_of(file, first) == "alice"
    with pytest.raises(AlreadyExistsError, match="--rotate"):
        run("create", "--name", "alice", "--file", file)
    second = run("create", "--name", "alice", "--rotate", "--expires-days", "30", "--file", file)
    rows = [line.split("\t") for line in run("list", "--file", file).splitlines()]
    assert [(row[0], row[2]) for row in rows] == [("alice", "concurrent 2")] * 2, "a new key keeps the limits"
    assert {row[4] for row in rows} == {"priority any"}
    assert first.strip() not in run("list", "--file", file)
    run("revoke", "--name", "alice", "--id", rows[0][1], "--file", file)
    with pytest.raises(UnauthenticatedError):
        name_of(file, first)
    assert name_of(file, second) == "alice"
    run("revoke", "--name", "alice", "--file", file)
    assert run("list", "--file", file) == ""
    with pytest.raises(NotFoundError):
        run("create", "--name", "alice", "--rotate", "--file", file)


def test_the_list_shows_a_limit_of_priority(tmp_path: Path) -> None:
    run("create", "--name", "batch", "--max-priority", "-1", "--file", tmp_path / "keys")
    assert "\tpriority -1\t" in run("list", "--file", tmp_path / "keys")
