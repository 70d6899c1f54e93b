"""A start does little work: a known one loads no torch and measures nothing; its port is open at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.running import pull
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import check_ahead, is_checked
from tests.support.models.gguf_models import write_model_file

HEAVY = ("torch", "transformers", "redis")

SERVED = """
import os, signal, sys, threading, time, urllib.error, urllib.request
from all_in_one.__main__ import main
def watch(url):
    while True:
        try:
            if urllib.request.urlopen(url).status == 200: break
        except (urllib.error.URLError, OSError): time.sleep(0.02)
    print(*(name for name in sys.argv[2].split(",") if name in sys.modules))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
address = sys.argv[1]
threading.Thread(target=watch, args=[f"http://{address}/health"], daemon=True).start()
main(["--listen", address, *sys.argv[3:]])
"""
LIBRARY = """
import sys
from specinfer import LLM, SamplingParams
with LLM(sys.argv[2], draft="ngram") as llm:
    llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4))
print(*(name for name in sys.argv[1].split(",") if name in sys.modules))
"""
STUCK = """
import sys, time
import verifier_svc.app
from all_in_one.__main__ import main
verifier_svc.app.load_runner = lambda settings: time.sleep(1000)
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_file(tmp_path_factory.mktemp("known") / "tiny.gguf")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)


@pytest.mark.native
def test_a_known_start_loads_no_torch_and_measures_nothing(model: Path) -> None:
    flags = ["--model", str(model), "--draft", "ngram", "--kv-tokens"]
    for tokens in (9000, 9600, 10200, 10800):  # what fits differs; a busy machine's times may not be kept
        (port,) = free_ports(1)
        done = run(SERVED, f"127.0.0.1:{port}", ",".join(HEAVY), *flags, str(tokens))
        if "measuring passes" not in done.stderr:
            break
    assert done.stdout.split() == []
    assert "measuring passes" not in done.stderr
    assert "comparing a few layers" not in done.stderr


@pytest.mark.native
def test_a_pulled_file_is_checked_before_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path / "cache"))
    directory = pull(str(write_model_file(tmp_path / "tiny.gguf")))
    assert is_checked(directory, RunnerOptions())
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    check_ahead(directory)
    assert "is checked again at its first start" in caplog.text


@pytest.mark.native
def test_the_library_loads_no_torch_for_a_known_file(model: Path) -> None:
    run(LIBRARY, "none", str(model))
    assert run(LIBRARY, ",".join(HEAVY), str(model)).stdout.split() == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("specinfer.cli.main", ("numpy", *HEAVY)),
        ("all_in_one.settings", HEAVY),
        ("all_in_one.app", HEAVY),
        ("verifier_svc.__main__", HEAVY),
    ],
)
def test_modules_do_without(module: str, heavy: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*(name for name in {heavy!r} if name in sys.modules))"
    assert run(program).stdout.split() == []


def test_calls_are_refused_while_a_model_loads_and_a_signal_ends_at_once(model: Path) -> None:
    import httpx2

    (port,) = free_ports(1)
    command = [sys.executable, "-c", STUCK, "--listen", f"127.0.0.1:{port}", "--model", str(model)]
    with subprocess.Popen(
        [*command, "--draft", "none"], stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", transport=httpx2.HTTPTransport(retries=100)
            ) as client:
                health = client.get("/health")
                call = client.post("/v1/completions", json={"model": "any", "prompt": "a"})
                props = client.get("/props")
                page = client.get("/")
            process.send_signal(signal.SIGINT)
            _, printed = process.communicate(timeout=30)
        finally:
            process.kill()
    assert health.status_code == call.status_code == 503
    assert call.headers["retry-after"] == "1"
    assert call.json()["error"]["code"] == props.json()["error"]["code"] == "loading"
    assert health.json()["status"] == "loading"
    assert {"phase", "percent"} <= health.json().keys()
    assert page.status_code == 200
    assert process.returncode == 130
    assert "Traceback" not in printed
    assert printed.splitlines()[-1] == "SIGINT: ended"


def test_derived_values_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specinfer.system.derived import derived, derived_path

    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    computed: list[int] = []

    def compute() -> list[int]:
        computed.append(1)
        return [7]

    assert derived("kind", ["a"], compute) == derived("kind", ["a"], compute) == [7]
    assert len(computed) == 1
    derived_path("kind", ["a"]).write_text("{")
    assert derived("kind", ["a"], compute) == [7]
    assert len(computed) == 2, "a damaged value is computed again"
    assert json.loads(derived_path("kind", ["a"]).read_text()) == [7]
    derived("kind", ["b"], compute)
    assert len(computed) == 3
