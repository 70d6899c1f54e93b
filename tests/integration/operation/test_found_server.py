"""Commands find a server of this user: `serve` by its record, and `run` starts one if there is none."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.system.running import running_servers
from tests.chaos.model_directory import write_model
from tests.chaos.service import Service
from tests.support.preloaded import run_preloaded

KEY = "a-key-of-the-option"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "all_in_one", "--listen", f"127.0.0.1:{port}", "--api-key", KEY]
    command += ["--model", str(model), "--dtype", "float32", "--kv-tokens", "4096", "--threads", "1"]
    service = Service("server", "server", port, command, tmp_path_factory.mktemp("server"), {})
    service.start()
    asyncio.run(service.ready())
    while service.pid not in [server.pid for server in running_servers()]:
        assert "error" not in service.log.read_text()
    yield service
    asyncio.run(service.stop())
    assert service.pid not in [server.pid for server in running_servers()]


def specinfer(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_preloaded(
        "specinfer.cli", *arguments, **{"SPECINFER_API_KEY": KEY, "COLUMNS": "200"} | variables
    )


def test_commands_find_serve_and_need_its_key(served: Service) -> None:
    url = f"http://127.0.0.1:{served.port}"
    refused = specinfer("status", SPECINFER_API_KEY="another")
    assert (refused.returncode, "no such key" in refused.stderr) == (1, True)
    answer = specinfer("generate", "hi", "--max-new-tokens", "7")
    assert answer.returncode == 0, answer.stderr
    assert "7 tokens in" in answer.stderr
    shown = specinfer("status").stdout
    assert re.search(rf"serve +│ {url}, [0-9.]+ GB of memory", shown), shown
    assert "1 requests finished" in shown
    (listed,) = [line for line in specinfer("ps").stdout.splitlines() if url in line]
    assert "\ttiny\tdraft ngram\tcontext 512\t" in listed
    chat = specinfer("run", "tiny", "hi", "--max-new-tokens", "5")
    assert (chat.returncode, "5 tokens in" in chat.stderr) == (0, True), chat.stderr
    last = served.log.read_text().splitlines()
    (ready,) = [line for line in last if "all_in_one.door: ready: " in line]
    assert f"chat page {url}/, API {url}/v1; tiny, " in ready
    assert ready.endswith("draft ngram, context 512, 1 thread")


def test_run_loads_a_model_and_ends_its_server(model: Path) -> None:
    """The server is of another model's name, so that none that runs has it."""
    other = model.with_name("other")
    other.symlink_to(model)
    command = [
        sys.executable,
        "-m",
        "specinfer.cli",
        "run",
        str(other),
        "--dtype",
        "float32",
        "--threads",
        "1",
    ]
    done = subprocess.run(
        [*command, "--max-new-tokens", "5"], input="hi\n", capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert "5 tokens in" in done.stderr
    assert done.stdout.strip()
    (port,) = re.findall(r"also at http://127\.0\.0\.1:(\d+)/", done.stderr)
    assert not [server for server in running_servers() if server.url.endswith(f":{port}")]


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specinfer.cli", "run", str(tmp_path / "no.gguf"), "hi"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no.gguf" in done.stderr
    assert "Traceback" not in done.stderr
