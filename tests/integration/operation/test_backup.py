"""Backups by the commands of docs/operations.md, taken while requests run: restored requests continue."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from specinfer import AsyncClient
from specinfer.cli.local.processes import free_ports
from tests.chaos.model_directory import write_model
from tests.chaos.service import Service
from tests.integration.operation.test_all_in_one import (
    STREAMED,
    server,
    text_of_event,
    text_of_plain_answer,
)
from tests.support.system import running_system

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE.read_text().partition("\n## Backup")[2], re.DOTALL)
CLI = shutil.which("redis-cli")


async def run(script: str, **variables: object) -> None:
    """Run commands of the page."""
    env = {"PATH": os.environ["PATH"]} | {name: str(value) for name, value in variables.items()}
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-euc", script], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def started(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    service.start()
    try:
        await service.loaded()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
            yield client
    finally:
        await service.kill()


async def test_requests_of_a_copied_store_continue(tmp_path: Path) -> None:
    model, store, copy = write_model(tmp_path / "tiny"), tmp_path / "live" / "store", tmp_path / "copy"
    text, last = "", ""
    for folder in (store.parent, copy):
        folder.mkdir(mode=0o700)
    service = server(model, tmp_path, "--store", str(store))
    async with started(service) as client:
        whole = await text_of_plain_answer(client)
        async with client.stream("POST", "/v1/completions", json=STREAMED) as reply:
            async for line in reply.aiter_lines():
                text += text_of_event(line)
                if line.startswith("id: "):
                    last = line.removeprefix("id: ")
                elif len(text) > 20:
                    break
            await run(COMMANDS[0], STORE=store, COPY=copy, PID=service.pid)
    async with started(server(model, tmp_path, "--store", str(copy / "store"))) as client:
        rest = await client.post("/v1/completions", json=STREAMED, headers={"Last-Event-ID": last})
    assert rest.text.rstrip().endswith("data: [DONE]")
    assert text + "".join(map(text_of_event, rest.text.splitlines())) == whole


@pytest.mark.skipif(CLI is None or shutil.which("redis-server") is None, reason="needs Redis' own programs")
async def test_requests_of_a_copied_redis_are_there_again(redis_url: str, tmp_path: Path) -> None:
    assert CLI is not None
    copy, directory, (port,) = tmp_path / "copy.rdb", tmp_path / "redis", free_ports(1)
    directory.mkdir()
    async with running_system(redis_url) as system, AsyncClient(system.address) as client:
        answer = await client.generate([5, 6, 7], max_new_tokens=12, request_id="kept")
        await run(f'"{CLI}" -u {redis_url} --rdb "$COPY"', COPY=copy)
    await run(COMMANDS[1], COPY=copy, DIRECTORY=directory, PORT=port)
    options = ["--port", str(port), "--dir", str(directory), "--save", "", "--appendonly", "yes"]
    process = await asyncio.create_subprocess_exec(
        "redis-server", *options, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await run('until redis-cli -p "$PORT" PING | grep -q PONG; do sleep 0.1; done', PORT=port)
        restored = f"redis://127.0.0.1:{port}/0"
        async with running_system(restored) as system, AsyncClient(system.address) as client:
            again = await client.attach("kept").read()
        assert (again.token_ids, again.text) == (answer.token_ids, answer.text)
    finally:
        process.kill()
        await process.wait()
