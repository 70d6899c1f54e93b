"""The health command, for a serving service, a non-serving one, one with TLS, and without a service."""

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
    """Yield a healthy server and its address."""
    server = ServiceServer(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0, **options), [])
    address = f"127.0.0.1:{await server.start()}"
    try:
        yield server, address
    finally:
        await server.stop()


async def health(*arguments: str, added: str = "") -> tuple[int, str]:
    """Run the command; return exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specinfer.service.health", *arguments),
        env=os.environ | {"SPECINFER_HEALTH_FLAGS": added},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode().strip()


async def test_a_service_is_healthy_while_it_reports_so() -> None:
    async with serving() as (server, address):
        assert await health(address) == (0, "")
        await server.set_serving(False)
        code, output = await health(address)
        assert code == 1
        assert output.endswith(f"error: {address}: the service answers NOT_SERVING, not SERVING: retry later")


async def test_a_missing_service_is_one_line() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, output = await health(address, "--timeout", "60")
    assert code == 1
    assert f"{address}: UNAVAILABLE" in output
    assert "\n" not in output


async def test_a_service_with_tls_is_asked_with_flags_from_the_environment(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    server, client = ca.sign("server", "serverAuth"), ca.sign("client", "clientAuth")
    files = {"tls_certificate": server.certificate, "tls_key": server.key, "tls_client_ca": ca.certificate}
    flags = f"--tls-ca {ca.certificate} --tls-name localhost"
    async with serving(**{name: str(path) for name, path in files.items()}) as (_, address):
        shown = f"{flags} --tls-cert {client.certificate} --tls-key {client.key}"
        assert await health(address, added=shown) == (0, "")
        assert (await health(address, added=flags))[0] == 1  # no certificate of ours
        assert (await health(address))[0] == 1  # plaintext
        code, output = await health(address, added="--tls-ca /no/such.pem")
        assert code == 2
        assert "tls_ca = '/no/such.pem'" in output


def test_it_imports_no_large_packages() -> None:
    """It is started every few seconds, next to services that need the processor."""
    heavy = ("pydantic", "numpy", "torch", "typer")
    code = f"import sys, specinfer.service.health; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [[], ["a:1", "--no-such-flag"]])
async def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    assert (await health(*arguments))[0] == 2
