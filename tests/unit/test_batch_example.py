"""`examples/batch.py` against a local server: answers, refusals, a full server, a later run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from specinfer.cli.main import app
from specinfer.errors import InvalidInputError
from tests.support.network.scripted_api import Answer, ApiScript, Body, scripted_api

SCRIPT = Path(__file__).parents[2] / "examples" / "batch.py"


def rows_of(path: Path) -> dict[str, Any]:
    """Return the output's lines by their ids, which must be unique."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["custom_id"] for row in rows}) == len(rows)
    return {row["custom_id"]: row for row in rows}


def test_a_batch_is_answered_and_continued(tmp_path: Path) -> None:
    """`a` is answered, `b` refused, `c` asked again at a full server, and `d` fails in the first run."""
    source, output, down = tmp_path / "in.jsonl", tmp_path / "out.jsonl", True
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": name}}
        for name in "abcd"
    ]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def answer(path: str, body: Body, before: int) -> Answer:
        if body["prompt"] == "b":
            return 400, {}, {"error": "no"}
        if body["prompt"] == "c" and not before:
            return 503, {"Retry-After": "0"}, {}
        return (500 if body["prompt"] == "d" and down else 200), {"x-request-id": "r"}, {"path": path}

    script = ApiScript(answer)
    with scripted_api(script) as url:
        command = [sys.executable, str(SCRIPT), str(source), str(output), url]
        assert subprocess.run(command).returncode == 1
        first = rows_of(output)
        assert {name: row["response"]["status_code"] for name, row in first.items()} == {
            "a": 200,
            "b": 400,
            "c": 200,
            "d": 500,
        }
        assert first["a"]["response"] == {
            "status_code": 200,
            "request_id": "r",
            "body": {"path": "/v1/completions"},
        }
        with output.open("a") as file:
            file.write('{"id": "batch_req_x", "cus')  # torn by the end of the process
        down, known = False, len(script.bodies)
        assert subprocess.run(command).returncode == 0
        assert [body["prompt"] for body in script.bodies[known:]] == ["d"]
    assert set(rows_of(output)) == set("abcd")


def test_the_former_command_names_the_script() -> None:
    done = CliRunner().invoke(app, ["batch", "in.jsonl", "out.jsonl", "--base-url", "http://127.0.0.1:8000"])
    assert isinstance(done.exception, InvalidInputError)
    assert "examples/batch.py" in str(done.exception)
