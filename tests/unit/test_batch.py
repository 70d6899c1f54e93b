"""`specinfer batch` against a local server: answers, refusals, failures, later runs, bad files."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specinfer.cli.main import app
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.openai_api import batch
from specinfer.openai_api.batch import BatchTotals, answer_all, sole_run
from specinfer.openai_api.batch_input import read_jobs
from specinfer.openai_api.server import ApiServer, read_reply
from tests.support.full_disk import full_disk
from tests.support.network.scripted_api import Answer, ApiScript, Body, scripted_api


def job(identity: str, **fields: Any) -> dict[str, Any]:
    """Return a line of the input."""
    body = {"model": "m", "prompt": identity}
    return {"custom_id": identity, "method": "POST", "url": "/v1/completions", "body": body, **fields}


def echo(path: str, body: Body, before: int) -> Answer:
    return 200, {"x-request-id": f"r-{body['prompt']}"}, {"path": path, "said": body["prompt"]}


class Files:
    """Input and output of a batch."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"

    def write(self, *rows: Any) -> None:
        self.input.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def rows(self) -> dict[str, Any]:
        """Return the output's lines by their ids, which must be unique."""
        rows = [json.loads(line) for line in self.output.read_text().splitlines()]
        by_id = {row["custom_id"]: row for row in rows}
        assert len(by_id) == len(rows)
        return by_id

    def run(self, url: str, *options: str) -> int:
        """Run the command; return its exit code.

        Raises:
            Exception: as the command does.
        """
        arguments = ["batch", str(self.input), str(self.output), "--base-url", url, *options]
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_every_line_gets_its_answer(files: Files) -> None:
    names = [f"job {n}" for n in range(40)]
    files.write(*(job(name) for name in names), job("chat", url="/v1/chat/completions"))
    with scripted_api(ApiScript(echo)) as url:
        assert files.run(url, "--concurrency", "7") == 0
    rows = files.rows()
    assert set(rows) == {*names, "chat"}
    assert rows["job 5"] == {
        "id": "batch_req_6",
        "custom_id": "job 5",
        "response": {
            "status_code": 200,
            "request_id": "r-job 5",
            "body": {"path": "/v1/completions", "said": "job 5"},
        },
        "error": None,
    }
    assert rows["chat"]["response"]["body"]["path"] == "/v1/chat/completions"


def test_a_refused_line_has_its_refusal_and_the_others_their_answers(files: Files) -> None:
    def answer(path: str, body: Body, before: int) -> Answer:
        return (400, {}, {"error": {"param": "top_p"}}) if body["prompt"] == "b" else echo(path, body, before)

    files.write(job("a"), job("b"), job("c"))
    with scripted_api(ApiScript(answer)) as url:
        assert files.run(url) == 0
    assert {name: row["response"]["status_code"] for name, row in files.rows().items()} == {
        "a": 200,
        "b": 400,
        "c": 200,
    }
    assert files.rows()["b"]["response"]["body"] == {"error": {"param": "top_p"}}


def test_a_page_is_not_an_answer(files: Files) -> None:
    """A proxy or portal may answer 200 instead of the server; the next run sends such lines again."""
    pages: list[Any] = ["<html>welcome</html>", [1], None]

    def answer(path: str, body: Body, before: int) -> Answer:
        return 200, {}, pages[body["n"]]

    files.write(*(job(str(n), body={"n": n}) for n in range(len(pages))))
    with scripted_api(ApiScript(answer)) as url:
        assert files.run(url) == 1
    assert {row["error"]["code"] for row in files.rows().values()} == {"no_answer"}
    with scripted_api(ApiScript(lambda path, body, before: (200, {}, {}))) as url:
        assert files.run(url) == 0


def test_halves_of_surrogate_pairs_are_written_unchanged(files: Files) -> None:
    texts = ["\ud83d", "\ude00 end", "é 北 \u2028"]

    def answer(path: str, body: Body, before: int) -> Answer:
        return 200, {}, {"said": body["prompt"]}

    files.write(*(job(text) for text in texts))
    with scripted_api(ApiScript(answer)) as url:
        assert files.run(url) == 0
        assert files.run(url) == 0
    rows = [json.loads(line) for line in files.output.read_text(encoding="utf-8").split("\n") if line]
    assert {row["response"]["body"]["said"] for row in rows} == set(texts)


def test_an_interrupted_batch_does_not_wait_for_room(files: Files) -> None:
    """The first answer interrupts the run while the other line waits 60 s for room."""

    def answer(path: str, body: Body, before: int) -> Answer:
        return echo(path, body, before) if body["prompt"] == "a" else (503, {"Retry-After": "60"}, {})

    def interrupt(totals: BatchTotals) -> None:
        raise KeyboardInterrupt

    files.write(job("full"), job("a"))
    script = ApiScript(answer)
    with scripted_api(script) as url, pytest.raises(KeyboardInterrupt):
        answer_all(ApiServer.at(url), read_jobs(files.input), files.output, 2, 10_000.0, interrupt)
    assert len(script.bodies) == 2, "the line without room was not sent again"
    assert "a" in files.rows()


def test_a_line_that_finds_no_room_is_sent_again(files: Files) -> None:
    def answer(path: str, body: Body, before: int) -> Answer:
        return echo(path, body, before) if before >= 2 else (429, {"Retry-After": "0"}, {"error": "full"})

    files.write(job("a"))
    script = ApiScript(answer)
    with scripted_api(script) as url:
        assert files.run(url) == 0
    assert len(script.bodies) == 3
    assert files.rows()["a"]["response"]["status_code"] == 200


def test_a_later_run_sends_only_lines_without_an_answer(files: Files) -> None:
    """Failures and a truncated last line are sent again, refusals are not."""

    def failing(path: str, body: Body, before: int) -> Answer:
        status = {"refused": 422, "broken": 500, "full": 503}.get(body["prompt"])
        return (status, {}, {}) if status else echo(path, body, before)

    files.write(*map(job, ("good", "refused", "broken", "full", "torn")))
    with scripted_api(ApiScript(failing)) as url:
        assert files.run(url, "--patience-seconds", "0") == 1
    torn = next(line for line in files.output.read_text().splitlines() if '"torn"' in line)
    others = [line for line in files.output.read_text().splitlines() if line != torn]
    files.output.write_text("\n".join([*others, torn[:20]]))
    script = ApiScript(echo)
    with scripted_api(script) as url:
        assert files.run(url) == 0
        assert sorted(body["prompt"] for body in script.bodies) == ["broken", "full", "torn"]
        assert files.run(url) == 0
    assert len(script.bodies) == 3
    assert {name: row["response"]["status_code"] for name, row in files.rows().items()} == {
        **dict.fromkeys(("good", "broken", "full", "torn"), 200),
        "refused": 422,
    }


@pytest.mark.parametrize("room", [0, 1, 60, 130, 131, 700])
def test_a_full_disk_truncates_no_line(files: Files, room: int) -> None:
    """If the disk stays full, the batch ends with an error, and the next run sends the missing lines."""
    names = [f"job {n}" for n in range(12)]
    files.write(*map(job, names))
    script = ApiScript(echo)
    with scripted_api(script) as url, full_disk() as disk:
        disk.room = room
        with pytest.raises(UnavailableError, match="output = "):
            files.run(url, "--concurrency", "1", "--patience-seconds", "0")
        written = set(files.rows())
        disk.room = None
        with files.output.open("a") as file:
            file.write('{"id": "batch_req_3", "cust\n')  # an older version continued after a truncated line
        before = len(script.bodies)
        assert files.run(url) == 0
        assert {body["prompt"] for body in script.bodies[before:]} == set(names) - written
    assert set(files.rows()) == set(names)


def test_a_batch_waits_for_room_on_the_disk(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    class Room(threading.Event):
        """Makes room on the disk while the batch waits."""

        def wait(self, timeout: float | None = None) -> bool:
            disk.room = None
            return super().wait(0)

    files.write(*(job(str(n)) for n in range(5)))
    with scripted_api(ApiScript(echo)) as url, full_disk() as disk:
        jobs = read_jobs(files.input)
        monkeypatch.setattr(batch.threading, "Event", Room)
        disk.room = 150
        totals = batch.answer_all(ApiServer.at(url), jobs, files.output, 1, 10_000.0)
    assert totals.succeeded == len(files.rows()) == 5


@pytest.mark.parametrize("status", [401, 403, 408, 409])
def test_a_refused_key_is_not_an_answer(files: Files, status: int) -> None:
    """The next run, with the right key, sends such lines again."""
    files.write(job("a"))
    with scripted_api(ApiScript(lambda path, body, before: (status, {}, {"error": {}}))) as url:
        assert files.run(url) == 1
    with scripted_api(ApiScript(echo)) as url:
        assert files.run(url) == 0
    assert files.rows()["a"]["response"]["status_code"] == 200


def test_a_line_may_be_torn_within_a_character(files: Files) -> None:
    files.write(job("a"), job("北"))
    with scripted_api(ApiScript(lambda path, body, before: (200, {}, {}))) as url:
        assert files.run(url) == 0
        whole = files.output.read_bytes()
        first, last = sorted(whole.splitlines(keepends=True), key=lambda line: "北".encode() in line)
        files.output.write_bytes(first + last[: last.rindex("北".encode()) + 1])
        assert files.run(url) == 0
    assert set(files.rows()) == {"a", "北"}


def test_the_output_must_be_a_file_and_a_link_to_it_stays(files: Files) -> None:
    """A batch run by root that writes to /dev/null must not replace it by a file."""
    files.write(job("a"))
    os.mkfifo(files.output)
    with pytest.raises(InvalidInputError, match=r"output = '.*out.jsonl':"):
        files.run("http://127.0.0.1:1")
    assert files.output.is_fifo()
    files.output.unlink()
    elsewhere = files.output.with_name("elsewhere")
    elsewhere.touch()
    files.output.symlink_to(elsewhere)
    with scripted_api(ApiScript(echo)) as url:
        assert files.run(url) == 0
    assert files.output.is_symlink()
    assert '"a"' in elsewhere.read_text()


def test_two_runs_do_not_write_one_output(files: Files) -> None:
    files.write(job("a"))
    with scripted_api(ApiScript(echo)) as url:
        with sole_run(files.output), pytest.raises(InvalidInputError, match="another run"):
            files.run(url)
        assert not files.output.exists()
        assert files.run(url) == 0
    assert set(files.rows()) == {"a"}
    assert sorted(path.name for path in files.input.parent.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_file_of_windows_and_strange_answers_are_read(files: Files) -> None:
    def answer(path: str, body: Body, before: int) -> Answer:
        return echo(path, body, before) if before else (503, {"Retry-After": "\u00b2"}, {})

    files.input.write_bytes(b"\xef\xbb\xbf" + json.dumps(job("a")).encode() + b"\r\n")
    with scripted_api(ApiScript(answer)) as url:
        assert files.run(url) == 0
    assert set(files.rows()) == {"a"}


def test_too_deeply_nested_json_is_invalid(files: Files) -> None:
    files.input.write_text("[" * 100_000)
    with pytest.raises(InvalidInputError, match=r"in.jsonl:1 = .*must be a JSON object"):
        files.run("http://127.0.0.1:1")
    assert read_reply(200, {}, b"[" * 100_000).content == "[" * 100_000


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.openai_api.server._MAX_BYTES", 1000)
    long = ApiScript(lambda path, body, before: (200, {}, {"said": "x" * 1000}))
    with scripted_api(long) as url, pytest.raises(UnavailableError, match="more than 1000 bytes"):
        ApiServer.at(url).call("completions", {})


def test_a_truncated_answer_is_an_error() -> None:
    short = ApiScript(lambda path, body, before: (400, {"Content-Length": "50", "Connection": "close"}, {}))
    with scripted_api(short) as url, pytest.raises(UnavailableError, match="IncompleteRead"):
        ApiServer.at(url).call("completions", {})


def test_a_server_that_does_not_answer_is_the_lines_error(files: Files) -> None:
    files.write(job("a"))
    with scripted_api(ApiScript(echo)) as url:
        pass
    assert files.run(url) == 1
    row = files.rows()["a"]
    assert row["response"] is None
    assert row["error"]["code"] == "unavailable"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "input = '.*in.jsonl':"),
        ([job("a"), 3], r"in.jsonl:2 = '3': must be a JSON object"),
        ([job("a"), job("a")], r"in.jsonl:2 = 'a': repeats the custom_id of line 1"),
        ([job("")], r"in.jsonl:1: custom_id = ''"),
        ([job("a", method="GET")], r"in.jsonl:1: method = 'GET': must be POST"),
        ([job("a", url="/v1/embeddings")], r"in.jsonl:1: url = '/v1/embeddings': must be one of /v1/chat"),
        ([job("a", body=[])], r"in.jsonl:1: body = \[\]"),
        ([job("a", body={"stream": True})], r"in.jsonl:1: body.stream = True"),
        ([job("a", priority=1)], r"in.jsonl:1: priority = 1: unknown field"),
    ],
)
def test_a_file_with_a_bad_line_is_refused_before_anything_is_sent(
    files: Files, rows: list[Any], words: str
) -> None:
    files.write(*rows)
    script = ApiScript(echo)
    with scripted_api(script) as url, pytest.raises(InvalidInputError, match=words):
        files.run(url)
    assert script.bodies == []
    assert not files.output.exists()


def test_an_output_of_something_else_is_refused_and_kept(files: Files) -> None:
    files.write(job("a"))
    for other in ('{"custom_id": "z"}\n', '{"custom_id": ["a"]}\n', "my diary\nof today\n", "my diary"):
        files.output.write_text(other)
        with pytest.raises(InvalidInputError, match=r"out.jsonl:1"):
            files.run("http://127.0.0.1:1")
        assert files.output.read_text() == other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--concurrency", "0"], "--concurrency = 0"),
        (["--model", "m"], "--model = 'm':"),
        (["--base-url", "localhost:8000"], "base_url = 'localhost:8000'"),
    ],
)
def test_bad_options_are_named(files: Files, options: list[str], words: str) -> None:
    files.write(job("a"))
    with pytest.raises(InvalidInputError, match=words):
        files.run("http://127.0.0.1:1", *options)
