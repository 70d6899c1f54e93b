"""The health command, asked of a service that serves, one that does not, one behind TLS, and none."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from tests.support.network.certificates import Authority


@asynccontextmanager
async def serving(**options: str) -> AsyncIterator[tuple[ServiceServer, str]]:
    """A healthy server and its address."""
    server = ServiceServer(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0, **options), [])
    address = f"127.0.0.1:{await server.start()}"
    try:
        yield server, address
    finally:
        await server.stop()


async def health(*arguments: str, added: str = "") -> tuple[int, str]:
    """Exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specinfer.service.health", *arguments),
        env=os.environ | {"SPECINFER_HEALTH_FLAGS": added},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode().strip()


async def test_a_service_is_healthy_as_long_as_it_says_so() -> None:
    async with serving() as (server, address):
        assert await health(address) == (0, "")
        await server.set_serving(False)
        code, said = await health(address)
        assert code == 1
        assert said.endswith(f"error: {address}: the service answers NOT_SERVING, not SERVING: retry later")


async def test_nobody_there_is_one_line() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, said = await health(address, "--timeout", "60")
    assert code == 1
    assert f"{address}: UNAVAILABLE" in said
    assert "\n" not in said


async def test_a_service_behind_tls_is_asked_with_the_flags_of_the_environment(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    server, client = ca.sign("server", "serverAuth"), ca.sign("client", "clientAuth")
    files = {"tls_certificate": server.certificate, "tls_key": server.key, "tls_client_ca": ca.certificate}
    flags = f"--tls-ca {ca.certificate} --tls-name localhost"
    async with serving(**{name: str(path) for name, path in files.items()}) as (_, address):
        shown = f"{flags} --tls-cert {client.certificate} --tls-key {client.key}"
        assert await health(address, added=shown) == (0, "")
        assert (await health(address, added=flags))[0] == 1  # no certificate of ours
        assert (await health(address))[0] == 1  # plaintext
        code, said = await health(address, added="--tls-ca /no/such.pem")
        assert code == 2
        assert "tls_ca = '/no/such.pem'" in said


def test_it_loads_no_more_than_grpc() -> None:
    """It is started every few seconds, beside services that want the processor."""
    heavy = ("pydantic", "numpy", "torch", "typer")
    code = f"import sys, specinfer.service.health; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [[], ["a:1", "--no-such-flag"]])
async def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    assert (await health(*arguments))[0] == 2
