"""`specinfer up` with a tiny model: its checks, its output, its end."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from specinfer.cli.local import system as local
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import Child, check_listen_address, free_ports
from specinfer.cli.local.system import LocalSystem
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from tests.support.background import in_background
from tests.support.models.saved_model import save_target

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("model"))


def up(*flags: str) -> list[str]:
    return [sys.executable, "-m", "specinfer.cli", "up", *flags]


@contextmanager
def listening() -> Iterator[str]:
    """Yield an address that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@asynccontextmanager
async def serving(settings: ServiceSettings) -> AsyncIterator[None]:
    server = ServiceServer(settings, [])
    await server.start()
    try:
        yield
    finally:
        await server.stop()


def test_a_used_port_is_an_error_before_anything_starts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "Child", lambda *_: pytest.fail("a process was started"))
    with listening() as address:
        with pytest.raises(InvalidInputError, match=f"listen = '{address}':"):
            LocalSystem(LocalOptions(model=str(model), listen=address)).__enter__()
        done = subprocess.run(up("--model", str(model), "--listen", address), capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"specinfer: error: --listen = {address!r}: in use by another program; choose another address\n"
    )
    with listening() as other:
        reason = f"http_listen = '{other}': in use by another program; choose another address, or none"
        with pytest.raises(InvalidInputError, match=reason):
            LocalSystem(LocalOptions(model=str(model), http=other)).__enter__()
    check_listen_address(address)  # free again, though its last connection may linger


async def test_a_foreign_service_at_its_address_does_not_count_as_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program has taken the port after the check, and is healthy."""
    monkeypatch.setattr(local, "START_TIMEOUT_S", 1.0)
    settings = ServiceSettings(listen=f"127.0.0.1:{free_ports(1)[0]}", drain_seconds=0.1)
    system = LocalSystem(LocalOptions(listen=settings.listen))
    system.children["gateway"] = Child("gateway", ["sleep", "60"], tmp_path / "log", {})
    try:
        for instance in ("", "another"):
            monkeypatch.setenv("SPECINFER_INSTANCE", instance)
            async with serving(settings):
                with pytest.raises(UnavailableError, match="gateway is not serving after 1 s"):
                    await asyncio.to_thread(system.wait_for, "gateway", settings.listen)
        monkeypatch.setattr(local, "START_TIMEOUT_S", 60.0)
        monkeypatch.setenv("SPECINFER_INSTANCE", system.instance)
        async with serving(settings):
            await asyncio.to_thread(system.wait_for, "gateway", settings.listen)
    finally:
        system.stop()


def test_it_prints_what_is_ready_and_ends_on_sigint_in_the_background(
    model: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    address, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    flags = ["--model", str(model), "--dtype", "float32", "--device", "cpu", "--listen", address]
    flags += ["--http-listen", http, "--explain", "--served-model-name", "tiny,other"]
    with subprocess.Popen(
        in_background(up(*flags)),
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith("ready at "))
            target = (
                f"{model.name}, (native|torch) executor, float32, cpu, weights in float32, as dtype says: .*, "
                r"draft ngram \+ suffix, context 512, \d+ threads?"
            )
            doors = f"chat page http://{http}/, API http://{http}/v1"
            match = re.fullmatch(
                rf"ready at {address}: {doors}; {target}; logs in (\S+); Ctrl-C ends it\n", line
            )
            assert match, line
            logs = Path(match[2])
            names = {"verifier.log", "suffix.log", "gateway.log", "http.log"}
            assert {path.name for path in logs.iterdir()} == names
            with OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as client:
                assert [listed.id for listed in client.models.list().data] == ["tiny", "other"]
                answer = client.completions.create(model="other", prompt="hi", max_tokens=2)
                assert answer.model == "tiny"
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 2
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        finally:
            process.kill()
    assert not logs.exists()


def test_a_service_that_ends_later_leaves_its_log_and_its_place(tmp_path: Path) -> None:
    system = LocalSystem(LocalOptions())
    command = ["sh", "-c", "echo out of luck; exit 3"]
    system.children["ngram"] = child = Child("ngram", command, system.logs / "ngram.log", {})
    child.join(60)
    with pytest.raises(
        UnavailableError, match=f"ngram ended with code 3: out of luck; logs in {system.logs}"
    ):
        system.check()
    system.__exit__(None, None, None)
    assert (system.logs / "ngram.log").is_file()


def test_a_killed_speculator_is_started_again_and_a_killed_target_is_the_end(model: Path) -> None:
    system = LocalSystem(LocalOptions(model=str(model), speculators={"mine": {"drafter": "ngram"}}))
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    try:
        for name in ("verifier", "mine"):
            system._commands[name] = waits, {}
            system._launch(name)
        pauses, now = list[float](), 0.0
        for _ in range(8):
            before = system.children["mine"]
            before.kill()
            system._restart("mine", before.end(), now)
            assert system.children["mine"] is before
            pauses.append(system._due["mine"] - now)
            now = system._due["mine"]
            system._restart("mine", before.end(), now)
            assert system.children["mine"] is not before
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
        system.children["mine"].kill()
        system.check()
        system.children["verifier"].kill()
        with pytest.raises(UnavailableError, match="verifier was ended by signal 9"):
            system.check()
    finally:
        system.stop()
