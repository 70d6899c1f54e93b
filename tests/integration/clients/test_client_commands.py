"""The commands `generate`, `attach`, `cancel` and `status`, against fake gateways."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import grpc
import pytest

from specinfer.v1 import generation_pb2
from tests.support.network.fake_gateway import TEXT, TOKENS, Turn, fake_gateways
from tests.support.preloaded import run_preloaded

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-very-secret"


async def started(*arguments: str, **variables: str) -> Process:
    command = [sys.executable, "-m", "specinfer.cli", *arguments]
    environment = {**os.environ, **variables}
    return await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, stdin=asyncio.subprocess.DEVNULL, cwd=ROOT, env=environment
    )


async def ended(process: Process) -> tuple[int | None, str, str]:
    """Wait for a process; return exit code, standard output and standard error."""
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def specinfer(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    """Run a command in a process with preloaded imports, and return the same as `ended`."""
    done = await asyncio.to_thread(run_preloaded, "specinfer.cli", *arguments, **variables)
    return done.returncode, done.stdout, done.stderr


async def test_generate_continues_at_the_next_gateway_and_notes_it() -> None:
    async with fake_gateways([Turn(replies=7, dies=True)], []) as (first, second):
        addresses = f"{first.address}, {second.address}"
        flags = ["--address", addresses, "--request-id", "mine", "--deadline-seconds", "90"]
        code, out, err = await ended(await started("generate", "hi", *flags))
    assert (code, out) == (0, TEXT + "\n"), err
    note, statistics = err.strip().splitlines()  # and no lines of gRPC
    assert note.startswith("gateway unavailable (")
    assert note.endswith("); trying again")
    assert statistics.startswith("40 tokens in ")
    (before,), (after,) = first.calls, second.calls
    assert (before.request_id, before.deadline_seconds) == ("mine", 90.0)
    assert after == generation_pb2.AttachRequest(request_id="mine", from_token=7)


async def test_generate_sends_the_files_to_copy_from(tmp_path: Path) -> None:
    files = [tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "bytes"]
    for file, content in zip(files, (b"first\n", "zwölf".encode(), b"\xff"), strict=True):
        file.write_bytes(content)
    async with fake_gateways([]) as (gateway,):
        flags = ["--address", gateway.address, "--reference", str(files[0])]
        code, _, err = await specinfer("generate", "hi", *flags, "--reference", str(files[1]))
        assert code == 0, err
        assert list(gateway.calls[0].references) == ["first\n", "zwölf"]
        code, _, err = await specinfer("generate", "hi", *flags, "--reference", str(files[2]))
    assert (code, len(gateway.calls)) == (2, 1)
    assert f"reference = '{files[2]}': not UTF-8 at byte 1" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_generate_cancels_its_request_before_it_ends(number: signal.Signals, code: int) -> None:
    async with fake_gateways([Turn(replies=3, hangs=True)]) as (gateway,):
        process = await started("generate", "hi", "--address", gateway.address)
        assert process.stdout is not None
        assert await process.stdout.readexactly(9) == b"<0><1><2>"
        process.send_signal(number)
        _, err = await process.communicate()
    assert process.returncode == code, err
    assert gateway.cancelled == [gateway.calls[0].request_id]
    assert b"Traceback" not in err


async def test_the_error_of_a_lost_request_shows_the_attach_command() -> None:
    async with fake_gateways([Turn(replies=7, dies=True)]) as (gateway,):
        flags = ["--address", gateway.address]
        code, out, err = await specinfer(
            "generate", "hi", "--request-id", "a b", "--patience-seconds", "0.2", *flags
        )
        assert (code, out) == (1, "".join(f"<{i}>" for i in range(7)))
        assert "\nto stream the rest, if a gateway has it: specinfer attach 'a b' --from-token 7\n" in err
        assert err.splitlines()[-1].startswith(f"specinfer: error: gateway at {gateway.address}")
        await gateway.start(gateway.port)
        code, rest, err = await specinfer("attach", "a b", "--from-token", "7", *flags)
        assert (code, out + rest) == (0, TEXT + "\n"), err
        code, rest, err = await specinfer("attach", "a b", "--from-token", "30", "--json", *flags)
    answer = json.loads(rest)
    assert (answer["request_id"], answer["token_ids"]) == ("a b", list(TOKENS[30:]))


async def test_leaving_attach_cancels_nothing() -> None:
    async with fake_gateways([Turn(replies=3, hangs=True)]) as (gateway,):
        process = await started("attach", "r", "--address", gateway.address)
        await gateway.reached.wait()
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert (process.returncode, gateway.cancelled) == (130, [])


async def test_a_key_reaches_the_gateway_and_is_never_shown() -> None:
    refusal = Turn(replies=0, code=grpc.StatusCode.UNAUTHENTICATED, details="authorization: no such key")
    async with fake_gateways([refusal]) as (gateway,):
        flags = ["--address", gateway.address]
        runs = [
            await specinfer("generate", "hi", "--api-key", KEY, *flags),
            await specinfer("cancel", "r", *flags, SPECINFER_API_KEY=KEY),
            await specinfer("status", "--api-key", KEY, *flags),
            await specinfer("generate", "--help", SPECINFER_API_KEY=KEY),
            await specinfer("generate", "hi", "--api-key", KEY + "\n", *flags),
        ]
    assert [run[0] for run in runs] == [1, 0, 0, 0, 2]
    assert runs[0][2] == "specinfer: error: authorization: no such key (UNAUTHENTICATED)\n"
    assert KEY not in str(runs)
    assert [row["authorization"] for row in gateway.metadata] == [f"Bearer {KEY}"] * 3
    assert gateway.cancelled == ["r"]


def _states() -> list[generation_pb2.StatusReply]:
    return [
        generation_pb2.StatusReply(gateway_id="g1", steps=steps, new_tokens=3 * steps)
        for steps in (10, 20, 30)
    ]


async def test_watch_writes_a_block_each_time_and_ends_after_the_last() -> None:
    async with fake_gateways([]) as (gateway,):
        gateway.states = _states()
        flags = ["--watch", "--count", "3", "--interval-seconds", "0.1", "--address", gateway.address]
        code, out, err = await specinfer("status", *flags)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    first, *others = out.strip().split("\n\n")
    assert "tokens: - tokens/s, 30 since start" in first
    assert len(others) == 2
    for block in others:
        assert re.search(r"tokens: \d+\.\d tokens/s", block)
        assert "steps/s, 3.00 tokens each" in block


async def test_watch_continues_without_the_gateway_and_ends_on_ctrl_c() -> None:
    async with fake_gateways([]) as (gateway,):
        gateway.states = _states()
        flags = ["--watch", "--interval-seconds", "0.1", "--address", gateway.address]
        process = await started("status", *flags)
        assert process.stdout is not None
        await process.stdout.readuntil(b"tokens each")
        await gateway.stop()
        await process.stdout.readuntil(b"gateway: does not answer")
        await gateway.start(gateway.port)
        await process.stdout.readuntil(b"since start")
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Traceback" not in err


async def test_generate_passes_its_trace_to_the_gateway() -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with fake_gateways([]) as (gateway,):
        code, _, err = await specinfer(
            "generate", "hi", "--address", gateway.address, TRACEPARENT=traceparent
        )
        bad = await specinfer("generate", "hi", "--address", gateway.address, TRACEPARENT="nonsense")
    assert code == 0, err
    assert [metadata["traceparent"] for metadata in gateway.metadata] == [traceparent]
    assert bad[0] == 2
    assert "traceparent = 'nonsense'" in bad[2]
