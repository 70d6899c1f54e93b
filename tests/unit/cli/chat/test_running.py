"""Records of running servers, and the words and rates of `status`, `ps` and a start's last line."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.session.totals import GatewayTotals, LastMinute
from specinfer.cli.main import app
from specinfer.cli.options.shared import AccessFlags
from specinfer.cli.show import recent_words
from specinfer.client.described import ready_line
from specinfer.system.running import announced, resident_bytes, running_servers
from specinfer.v1 import generation_pb2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


def test_a_server_is_found_while_it_runs_and_a_record_of_an_ended_one_is_deleted(cache: Path) -> None:
    assert running_servers() == []
    with announced("serve", "unix:/tmp/x", "http://127.0.0.1:8000"):
        (server,) = running_servers()
        assert (server.command, server.address, server.pid) == ("serve", "unix:/tmp/x", os.getpid())
        left = cache / "running" / "1.json"  # of a process that was killed: nobody locks it
        left.write_text(next((cache / "running").iterdir()).read_text())
        assert running_servers() == [server]
        assert not left.exists()
        with announced("serve", "unix:/tmp/y", ""):  # another container's process may have this id
            assert len(running_servers()) == 2
    assert running_servers() == []


def test_a_read_only_cache_stops_no_server(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "running").write_text("a file, so that no directory can be made")
    with announced("serve", "unix:/tmp/x", ""):
        assert running_servers() == []
    assert "will not find this server" in caplog.text


def test_commands_take_the_given_address_then_the_latest_server_then_the_default() -> None:
    access = AccessFlags()
    assert access.reach(None).addresses == "127.0.0.1:50051"
    with announced("serve", "unix:/tmp/x", ""):
        assert access.reach(None).addresses == "unix:/tmp/x"
        assert access.reach("127.0.0.1:7").addresses == "127.0.0.1:7"


def test_without_a_server_nothing_is_listed() -> None:
    done = CliRunner().invoke(app, ["ps"])
    assert (done.exit_code, done.stdout) == (0, "")


def test_a_server_that_does_not_answer_is_listed() -> None:
    with announced("serve", "127.0.0.1:1", "http://127.0.0.1:8000"):
        done = CliRunner().invoke(app, ["ps"])
    assert done.stdout.startswith(f"serve (process {os.getpid()})\thttp://127.0.0.1:8000\t")


def test_memory_counts_the_process_and_its_children() -> None:
    assert resident_bytes(os.getpid()) > 10**7
    assert resident_bytes(2**22) == 0


def test_rates_and_gains_are_in_words() -> None:
    recent = generation_pb2.RecentState(seconds=60, new_tokens=300, steps=100, finished=2)
    assert recent_words(recent) == "5.0 tokens/s, 2 requests finished; no guesses: plain decoding"
    recent.drafted, recent.accepted = 400, 200
    assert recent_words(recent).endswith("200 of 400 guesses accepted, 3.00 tokens per pass")
    assert recent_words(generation_pb2.RecentState(seconds=60)) == "no tokens"


def test_the_line_of_a_start_names_doors_model_draft_context_and_threads() -> None:
    status = generation_pb2.StatusReply(
        model="m", executor="native", dtype="bfloat16", device="cpu", weights="Q4_K", max_context_len=512
    )
    target = "m, native executor, bfloat16, cpu, weights Q4_K"
    assert ready_line("", status, 1) == f"{target}, no draft, context 512, 1 thread"
    status.speculators.add(name="ngram")
    status.speculators.add(name="ssm", model="/models/small")
    assert ready_line("http://h:1", status, 2) == (
        f"chat page http://h:1/, API http://h:1/v1; {target}, draft ngram + ssm (small), context 512, 2 threads"
    )


def test_growth_is_that_of_the_last_minute() -> None:
    totals, minute = GatewayTotals(), LastMinute(100.0)
    totals.tokens, totals.steps, totals.finished = 50, 20, 1
    assert minute.growth(110.0, totals)[:4] == (10.0, 1, 50, 20), "since the start"
    for second in range(1, 200):
        totals.tokens += 2
        minute.mark(100.0 + second, totals)
        minute.mark(100.2 + second, totals)  # too soon for another mark
    grown = minute.growth(299.0, totals)
    assert (grown.seconds, grown.new_tokens, grown.steps) == (60.0, 120, 0)
