"""The HTTP service as a process: its end, and errors at its start."""

import asyncio
import signal
import socket
import sys

import openai

from specinfer.cli.local.processes import free_ports
from tests.support.network.fake_gateway import TEXT, Turn, fake_gateways
from tests.support.network.http_service import ASKED, MODEL
from tests.support.preloaded import run_preloaded


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_svc", *flags), stderr=asyncio.subprocess.PIPE
    )


async def test_the_process_drains_and_ends_well() -> None:
    """A stream that runs at SIGTERM is finished, even if its gateway restarts."""
    port = free_ports(1)[0]
    async with fake_gateways([Turn(replies=3, hangs=True)]) as (gateway,):
        gateway.states.append(MODEL)
        flags = ("--listen", f"127.0.0.1:{port}", "--gateways", gateway.address, "--drain-seconds", "60")
        process = await start(*flags)
        assert process.stderr is not None
        assert b"serving http" in await process.stderr.readline()
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            await gateway.reached.wait()
            process.send_signal(signal.SIGTERM)
            while b"draining" not in await process.stderr.readline():
                pass
            await gateway.stop()  # the stream is lost and resumed
            await gateway.start(gateway.port)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert await process.wait() == 0
    assert text == TEXT


def test_errors_at_the_start_name_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for flags, words in [
            (("--listen", taken), f"--listen = '{taken}': cannot be listened on: Address already in use"),
            (("--listen", "8000"), "--listen = '8000': must be host:port"),
            (("--gateways", "a:1,,b:2"), "--gateways = 'a:1,,b:2'"),
            (("--max-calls", "0"), "--max-calls = '0'"),
            (("--gateway-tls-key", "no.pem"), "--gateway-tls-ca = None: required"),
        ]:
            done = run_preloaded("http_svc", *flags)
            assert words in done.stderr, done.stderr
            assert done.returncode == 2
            assert "Traceback" not in done.stderr
