"""Every command in the README's console blocks is run, in order; its other claims are checked."""

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from itertools import takewhile
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.cli.local.processes import free_ports
from specinfer.hub.resolve import cache_directory
from specinfer.text.prompts import read_prompts
from speculator_svc.settings import SpeculatorSettings
from tests.support.background import services_of
from verifier_svc.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GATEWAY = "127.0.0.1:50051"


def console_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_two_commands_come_first() -> None:
    assert console_commands()[:2] == ["make demo", "make test"]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 80


def test_prompt_files_are_as_described(tmp_path: Path) -> None:
    (example,) = re.findall(r'`(\{"turns": .*?\})`', README)
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{example}\n{{"id": 7, "turns": ["b", "c"]}}\n')
    assert read_prompts(path) == ("text of the prompt", "b")


def test_the_cache_directory_is_as_described(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`$SPECINFER_CACHE`, else `$XDG_CACHE_HOME/specinfer`, else `~/.cache/specinfer`" in README
    for name, value in {"SPECINFER_CACHE": "/ours", "XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path("/ours")
    monkeypatch.delenv("SPECINFER_CACHE")
    assert cache_directory() == Path("/xdg/specinfer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/me/.cache/specinfer")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readme_commands(tmp_path: Path) -> None:
    background: list[subprocess.Popen[bytes]] = []
    metrics_port, http_port = free_ports(2)
    (logs := tmp_path / "logs").mkdir()
    binaries = Path(sys.executable).parent  # they may be of another tree: a worktree has none of its own
    usual = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ['PYTHONPATH']}"}
    environment = usual | {
        "SPECINFER_GATEWAY_METRICS_PORT": str(metrics_port),
        "SPECINFER_HTTP_LISTEN": f"127.0.0.1:{http_port}",
        "TMPDIR": str(logs),
    }
    try:
        for command in console_commands():
            command = command.replace("bench.json", str(tmp_path / "bench.json"))
            command = command.replace(".venv/bin/", f"{binaries}/")
            if command == "make test":  # this very run
                command = "make --dry-run test"
            if command.endswith(" &"):
                words = shlex.split(command.removesuffix(" &"))
                background.append(subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE))
                assert background[0].stderr is not None
                lines = [*takewhile(lambda line: not line.startswith(b"ready at "), background[0].stderr)]
                assert background[0].poll() is None, lines
                continue
            is_demo = command == "make demo"
            if is_demo:  # with the environment as it is
                flags = "--max-new-tokens 8 --model smollm2-135m"
                command = f"make BIN={binaries} --old-file .venv/.installed demo DEMO='{flags}'"
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, cwd=ROOT, env=usual, timeout=600
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            if is_demo:
                for word in ("plain decoding", "Token trees", "guessed by", "with the same text"):
                    assert word in done.stdout
        _check_clients(tmp_path, f"127.0.0.1:{http_port}")
        _check_health()
        assert "# HELP" in _read(
            f"http://127.0.0.1:{metrics_port}/metrics"
        )  # variables reach what `up` starts
        assert len(services_of(logs)) >= 3, "those that must have ended below"
    finally:
        for process in background:
            process.terminate()
            process.communicate(timeout=120)
    assert [process.returncode for process in background] == [143]
    assert services_of(logs) == set()
    assert (tmp_path / "bench.json").is_file()


def _check_clients(folder: Path, http: str) -> None:
    """Run the README's Python: our client, and OpenAI's at this test's port. Each prints an answer."""
    (clients,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(clients.strip().splitlines()) <= 10
    assert "127.0.0.1:8000" in clients
    (folder / "clients.py").write_text(
        clients.replace("127.0.0.1:8000", http).replace("print(", "print('>',")
    )
    done = subprocess.run([sys.executable, folder / "clients.py"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    _, *answers = done.stdout.split(">")
    assert [len(answer.split()) > 10 for answer in answers] == [True, True, True]


def _check_health() -> None:
    assert GATEWAY in README
    with grpc.insecure_channel(GATEWAY) as channel:
        for service in ("", "specinfer.v1.Generation"):
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def test_defaults_in_the_operations_page_are_those_of_the_settings() -> None:
    rows = dict(
        re.findall(
            r"^\| (gateway|verifier|speculator service|\[HTTP service\]\(http.md\)) \| (\S+:\d+) \|",
            OPERATIONS,
            re.MULTILINE,
        )
    )
    assert rows == {
        "gateway": GatewaySettings.model_fields["listen"].default,
        "verifier": VerifierSettings.model_fields["listen"].default,
        "speculator service": SpeculatorSettings.model_fields["listen"].default,
        "[HTTP service](http.md)": HttpSettings.model_fields["listen"].default,
    }
