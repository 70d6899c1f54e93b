"""The synchronous client against fake gateways; the checks of its options; the examples."""

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specinfer.client import (
    AsyncClient,
    Client,
    FinishReason,
    Patience,
    RequestFailedError,
    SpeculationStats,
    SpeculatorStats,
    make_request,
)
from specinfer.client.answer import read_summary
from specinfer.v1 import generation_pb2
from tests.support.network.fake_gateway import TEXT, TOKENS, FakeGateway, Turn, fake_gateways

EXAMPLES = sorted(
    path
    for path in (Path(__file__).resolve().parents[3] / "examples").glob("*.py")
    if path.stem not in ("skeleton", "gguf_with_draft", "batch")  # run by tests of their own
)
PATIENCE = Patience(patience_s=30.0, first_wait_s=0.01, longest_wait_s=0.1)


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a thread, so that gateways can run in this one."""
    return await asyncio.to_thread(work)


def client_of(*gateways: FakeGateway) -> Client:
    return Client([gateway.address for gateway in gateways], patience=PATIENCE)


async def test_a_prompt_is_answered_by_either_client() -> None:
    async with fake_gateways([], []) as (first, second), AsyncClient(first.address) as client:
        answer = await client.generate("hi", temperature=0.5, seed=3)

        def ask() -> Any:
            with client_of(second) as client:
                return client.generate("hi", temperature=0.5, seed=3)

        same = await in_thread(ask)
    for reply in (answer, same):
        assert (reply.text, tuple(reply.token_ids), reply.finish_reason) == (
            TEXT,
            TOKENS,
            FinishReason.LENGTH,
        )
    for gateway in (first, second):
        (call,) = gateway.calls
        call.request_id = ""
        assert call == make_request("hi", temperature=0.5, seed=3)


async def test_a_synchronous_stream_continues_at_the_next_gateway() -> None:
    async with fake_gateways([Turn(replies=5, dies=True)], []) as (first, second):

        def ask() -> None:
            with client_of(first, second) as client, client.stream("hi") as stream:
                texts = [piece.text for piece in stream]
                assert "".join(texts) == TEXT == stream.answer.text
                assert stream.request_id == first.calls[0].request_id
                with client.attach(stream.request_id, 30) as rest:
                    assert tuple(t for piece in rest for t in piece.token_ids) == TOKENS[30:]

        await in_thread(ask)
    assert [call.from_token for call in second.calls] == [5, 30]


async def test_status_cancel_and_errors_without_a_loop() -> None:
    script = [Turn(code=specinfer_code("NOT_FOUND"), replies=0, details="no such request")]
    async with fake_gateways(script) as (gateway,):

        def ask() -> None:
            with client_of(gateway) as client:
                assert client.status().gateway_id == gateway.address
                client.cancel("r1")
                with pytest.raises(RequestFailedError, match="no such request"):
                    list(client.attach("r2"))

        await in_thread(ask)
    assert gateway.cancelled == ["r1"]


async def test_threads_may_share_a_client() -> None:
    async with fake_gateways([]) as (gateway,):

        def ask() -> list[str]:
            with client_of(gateway) as client, ThreadPoolExecutor(8) as threads:
                return [reply.text for reply in threads.map(client.generate, ["hi"] * 24)]

        assert await in_thread(ask) == [TEXT] * 24
    assert threading.active_count() < 24, "the client's thread has ended"


async def test_callers_share_connections_and_have_keys_of_their_own() -> None:
    async with fake_gateways([]) as (gateway,), AsyncClient(gateway.address, "one") as client:
        await client.for_caller("two", f"00-{'1' * 32}-{'2' * 16}-01").generate("hi")
        await client.for_caller(None).generate("hi")
        await client.generate("hi")
    keys = [(row.get("authorization"), "traceparent" in row) for row in gateway.metadata]
    assert keys == [("Bearer two", True), (None, False), ("Bearer one", False)]


def specinfer_code(name: str) -> Any:
    import grpc

    return grpc.StatusCode[name]


def test_a_summary_is_read_whole() -> None:
    """All fields are read; an unknown finish reason of a later version is UNSPECIFIED."""
    message = generation_pb2.Summary(finish_reason=3, prompt_tokens=4, new_tokens=5, seed=6)
    message.ttft_seconds, message.total_seconds, message.queue_seconds = 0.5, 2.0, 0.25
    stats = message.stats
    stats.steps, stats.drafted, stats.accepted, stats.lossy = 4, 9, 3, True
    stats.acceptance_histogram.extend([1, 3])
    stats.speculators.add(name="ssm", drafted=9, accepted=3, wins=2)
    summary = read_summary(message)
    assert summary.finish_reason is FinishReason.STOP_STRING
    assert (summary.prompt_tokens, summary.new_tokens, summary.seed) == (4, 5, 6)
    assert (summary.ttft_seconds, summary.total_seconds, summary.queue_seconds) == (0.5, 2.0, 0.25)
    assert summary.stats == SpeculationStats(4, 9, 3, (1, 3), (SpeculatorStats("ssm", 9, 3, 2),), lossy=True)
    assert summary.stats.acceptance_length == 1.75
    message.finish_reason = 99  # type: ignore[assignment]
    assert read_summary(message).finish_reason is FinishReason.UNSPECIFIED


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_examples_are_short_and_run(path: Path, tmp_path: Path) -> None:
    code = await asyncio.to_thread(path.read_text)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(('"""', "#"))]
    assert len(lines) <= 10
    async with fake_gateways([]) as (gateway,):
        changed, places = re.subn(r"127\.0\.0\.1:50051", gateway.address, code)
        assert places == 1
        copy = tmp_path / path.name
        await asyncio.to_thread(copy.write_text, changed)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "error",
            copy,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert "<0>" in printed.decode()
